"""Python environments in the cache, each with pinned packages of one day."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services.cache import cached
from tests.services.command import run

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"

# Without it tomorrow's environment would be another one.
_AS_OF = "2026-11-30T00:00:00Z"


def uv() -> list[str]:
    """Return the command for uv, and install uv when it is missing."""
    command = [sys.executable, "-m", "uv"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0:
        return command
    if found := shutil.which("uv"):
        return [found]
    run([sys.executable, "-m", "pip", "install", "--quiet", "uv"])
    return command


def python(name: str, version: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of an environment, and build it first when it is missing."""

    def build(target: Path) -> None:
        venv = target / "venv"
        run([*uv(), "venv", "--quiet", "--python", sys.executable, venv])
        install = [*uv(), "pip", "install", "--quiet", "--python", str(venv / "bin/python")]
        run([*install, "--exclude-newer", _AS_OF, *packages])

    return cached(name, f"{version}-{TAG}", build) / "venv/bin/python"
