"""Run build commands."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


class CommandError(RuntimeError):
    """A command failed; the message holds the end of what it printed."""


def run(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """Run a command to its end and return its standard output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        printed = f"{done.stdout}\n{done.stderr}"[-4000:]
        raise CommandError(f"{' '.join(words)} ended with {done.returncode}\n{printed}")
    return done.stdout
