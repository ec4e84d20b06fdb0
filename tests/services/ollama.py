"""A real Ollama on the CPU with tiny random models.

Its releases are two programs: Ollama itself, and the llama.cpp server that it starts for
each loaded model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.services import llama_cpp
from tests.services.cache import cached
from tests.services.command import run
from tests.services.process import Service, answers, free_port

VERSION = "0.34.0"

MODEL_NAME = llama_cpp.MODEL_NAME
TOOL_MODEL_NAME = llama_cpp.TOOL_MODEL_NAME
THINKING_MODEL_NAME = llama_cpp.THINKING_MODEL_NAME
EMBEDDING_MODEL_NAME = llama_cpp.EMBEDDING_MODEL_NAME

MODEL_NAMES = (MODEL_NAME, TOOL_MODEL_NAME, THINKING_MODEL_NAME, EMBEDDING_MODEL_NAME)

_MODULE = "github.com/ollama/ollama"


def binary() -> Path:
    """Return the program, and build it first when it is missing (about four minutes)."""
    return cached("ollama", f"{VERSION}-llama{llama_cpp.BUILD}", _build) / "bin/ollama"


def _build(target: Path) -> None:
    """Build from the module cache, and put llama.cpp's programs where Ollama looks for it."""
    programs = llama_cpp.binary().parent
    download = run(["go", "mod", "download", "-json", f"{_MODULE}@v{VERSION}"])
    name = f"-X={_MODULE}/version.Version={VERSION} -X={_MODULE}/server.mode=release"
    build = ["go", "build", "-trimpath", "-ldflags", name, "-o", str(target / "bin/ollama"), "."]
    run(build, cwd=Path(json.loads(download)["Dir"]))
    (target / "lib/ollama").mkdir(parents=True)
    for program in llama_cpp.PROGRAMS:
        (target / "lib/ollama" / program).symlink_to(programs / program)


class Ollama(Service):
    """A running Ollama that has the tiny models, none of them loaded."""

    url: str

    @classmethod
    def start(cls, workdir: Path, *, env: Mapping[str, str] | None = None) -> Ollama:
        """Start the server with `env` among its settings, and give it its models."""
        port = free_port()
        settings = _settings(workdir, port)
        command = [str(binary()), "serve"]
        server = cls(command, log=workdir / "ollama.log", env={**settings, **(env or {})})
        server.url = f"http://127.0.0.1:{port}"
        server.wait_ready(answers(f"{server.url}/api/version"), limit=60.0)
        try:
            server._create_models(workdir, settings)
        except BaseException:
            server.stop()
            raise
        return server

    def _create_models(self, workdir: Path, settings: Mapping[str, str]) -> None:
        """Import the models as a user would."""
        assigned = [f"{name}={value}" for name, value in settings.items()]
        for name in MODEL_NAMES:
            file = workdir / f"{name}.Modelfile"
            file.write_text(f"FROM {llama_cpp.model(name)}\n")
            run(["env", *assigned, binary(), "create", name, "-f", file])


def _settings(workdir: Path, port: int) -> dict[str, str]:
    """Return the environment that keeps a server to this machine and to its own folder."""
    return {
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(workdir / "models"),
        # It fetches recommendations otherwise.
        "OLLAMA_NO_CLOUD": "1",
        # Where it keeps a key of its own.
        "HOME": str(workdir),
    }
