"""One virtual environment for each peer, with pinned versions, built once into the cache.

Peers cannot share one: Logfire loads a pydantic plugin into every process of its environment,
OpenLIT needs openai below 3, and openai-v2 an older `opentelemetry-util-genai`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.services.cache import cached
from tests.services.command import run

PYTHON = "3.12"
"""Measured with this one if it is here, otherwise with the one that runs the tests."""
AS_OF = "2026-12-01T00:00:00Z"
"""The day of whose packages the unpinned dependencies are taken."""

_CLIENTS = ("openai==3.57.0", "ollama==0.6.3", "httpx==0.28.1", "opentelemetry-sdk==1.45.2")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "base": (*_CLIENTS, "wrapt==2.5.2"),
    "genai": (*_CLIENTS, "opentelemetry-instrumentation-genai-openai==1.3b0"),
    "openllmetry": (
        *_CLIENTS,
        "opentelemetry-instrumentation-openai==0.62.4",
        "opentelemetry-instrumentation-ollama==0.62.4",
    ),
    "openinference": (
        *_CLIENTS,
        "openinference-instrumentation-openai==0.1.66",
        "openinference-instrumentation-ollama==0.1.13",
    ),
    "openai_v2": (
        *_CLIENTS,
        "opentelemetry-instrumentation-openai-v2==2.4b0",
        "opentelemetry-util-genai==0.4b0",
    ),
    "openlit": (
        "openlit==1.45.0",
        "openai==2.54.0",
        "ollama==0.6.3",
        "httpx==0.28.1",
        "opentelemetry-instrumentation==0.66b1",
        "opentelemetry-sdk==1.45.1",
    ),
    "langfuse": (*_CLIENTS, "langfuse==5.0.4"),
    "logfire": (*_CLIENTS, "logfire==5.4.0"),
}
"""Requirements by environment. In `base` ours, by hand and bare run, ours from the tree."""


def python(name: str) -> Path:
    """The interpreter of an environment; built when it is missing.

    Raises:
        CommandError: It could not be built.
    """
    base = interpreter()
    content = hashlib.sha256("\n".join((base, AS_OF, *ENVIRONMENTS[name])).encode()).hexdigest()

    def build(target: Path) -> None:
        venv = target / "venv"
        run([*_UV, "venv", "--quiet", "--python", base, venv])
        install = [*_UV, "pip", "install", "--quiet", "--python", venv / "bin/python"]
        run([*install, "--exclude-newer", AS_OF, *ENVIRONMENTS[name]])

    return cached(f"peer-{name}", content[:8], build) / "venv/bin/python"


def interpreter() -> str:
    """The Python that environments are made of."""
    command = [*_UV, "python", "find", "--no-python-downloads", PYTHON]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_with_all_pythons()
    )
    # Of a launcher the interpreter behind it is wanted: it answers in every environment.
    return _real(found.stdout.strip()) if found.returncode == 0 else sys.executable


_UV = (sys.executable, "-m", "uv")


def _with_all_pythons() -> dict[str, str]:
    """The environment variables, with every version of pyenv switched on."""
    if shutil.which("pyenv") is None:
        return dict(os.environ)
    versions = run(["pyenv", "versions", "--bare"]).split()
    return {**os.environ, "PYENV_VERSION": ":".join(v for v in versions if v.startswith(PYTHON))}


def _real(launcher: str) -> str:
    """The path of the interpreter that *launcher* starts."""
    done = subprocess.run(
        [launcher, "-c", "import sys; print(sys.executable)"],
        capture_output=True,
        text=True,
        check=True,
        env=_with_all_pythons(),
    )
    return done.stdout.strip()
