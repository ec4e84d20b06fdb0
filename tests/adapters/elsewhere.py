"""Tests of libraries that cannot be installed beside the others, in environments of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.services import environment

ROOT = Path(__file__).parents[2]
_TOOLS = (
    "hypothesis",
    "opentelemetry-sdk",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "uvicorn",
    "wrapt",
)


def python_with(library: str, *more: str) -> Path:
    """The interpreter of an environment with *library*, pinned as pip writes it, and our tools."""
    name, version = library.split("==")
    return environment.python(f"client-{name}", version, [library, *more, *_TOOLS])


def run_tests(tests: Path, library: str, *more: str) -> None:
    """Run *tests* where *library* is installed; fail with their output if they fail."""
    # requests leaves the sockets of streams that were left to the garbage collector.
    quiet = ["ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"]
    command = [python_with(library, *more), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    command += [f"-W{each}" for each in quiet]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr
