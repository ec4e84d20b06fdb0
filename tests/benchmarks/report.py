"""Numbers of a benchmark: medians, bootstrap bounds, and a file that says how they came about."""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bound:
    """A number and the most it may be."""

    name: str
    value: float
    most: float

    @property
    def kept(self) -> bool:
        """Whether the number is within its bound."""
        return 0 <= self.value <= self.most


def interval(
    values: Sequence[Any], *, of: Callable[[Sequence[Any]], float] = median, tail: float = 0.025
) -> tuple[float, float]:
    """A bootstrap interval that leaves *tail* out on each side; seeded."""
    source = random.Random(7)
    drawn = sorted(of(source.choices(values, k=len(values))) for _ in range(4000))
    return drawn[int(tail * len(drawn))], drawn[-1 - int(tail * len(drawn))]


def write(name: str, result: dict[str, Any], bounds: Sequence[Bound]) -> int:
    """Print and keep a result; returns the exit status: 1 when a bound is broken."""
    document = {
        "benchmark": name,
        "command": " ".join(["python", "-m", f"tests.benchmarks.{name}", *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "processor": _processor(),
        "bounds": [{"name": b.name, "value": b.value, "most": b.most} for b in bounds],
        **result,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    for bound in bounds:
        verdict = "ok  " if bound.kept else "OVER"
        print(f"{verdict} {bound.name}: {bound.value:.3f} (at most {bound.most:g})")
    return 0 if all(bound.kept for bound in bounds) else 1


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
