"""Running `otel-llm demo` as its users do, and looking at the processes it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
ROOT = Path(__file__).parents[2]
SHORT = ("--requests", "20", "--rate", "10")
MAIN = "from otel_llm.cli import main; main()"


def command(*words: str, without: tuple[str, ...] = ()) -> list[str]:
    """The command line of `otel-llm demo`, as if the packages *without* were not installed."""
    code = f"import sys; sys.modules.update(dict.fromkeys({without!r})); {MAIN}"
    return [sys.executable, "-c", code, "demo", *words]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without its telemetry's settings, and *variables*."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**clean, "OTEL_LLM_STRICT": "1", **variables}


def run(
    *words: str, without: tuple[str, ...] = (), limit_s: float = 100, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, in a pipe."""
    return subprocess.run(
        command(*words, without=without),
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        env=environment(**variables),
    )


def below(pid: int) -> set[int]:
    """The processes that *pid* has started, and those that they have started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it is gone
    found, waiting = set(), {pid}
    while waiting:
        waiting = {child for child, parent in parents.items() if parent in waiting} - found
        found |= waiting
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for is dead, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def within(seconds: float, find: Callable[[], Found]) -> Found:
    """What *find* returns as soon as that is true, or at last."""
    deadline = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
