"""What importing the package costs beside `opentelemetry.trace`.

python -m tests.benchmarks.imports [--rounds 15]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median

from tests.benchmarks.report import Bound, write

STATEMENTS = {
    "opentelemetry.trace": "import opentelemetry.trace",
    "otel_llm": "import otel_llm, opentelemetry.trace",
    "otel_llm, all public names": "from otel_llm import *; import opentelemetry.trace",
}
SCRIPT = """
import time
started = time.perf_counter()
{statement}
print((time.perf_counter() - started) * 1000)
"""


def main() -> int:
    """Time each import in fresh interpreters, interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds + 1):
        for name, statement in STATEMENTS.items():
            taken[name].append(milliseconds(statement))
    times = {name: median(values[1:]) for name, values in taken.items()}
    base = times["opentelemetry.trace"]
    added = max(0.0, times["otel_llm"] - base)  # less than nothing is noise
    bounds = [Bound("import otel_llm, ms beyond opentelemetry.trace", added, 20)]
    return write("imports", {"rounds": rounds, "median_ms": times}, bounds)


def milliseconds(statement: str) -> float:
    """Milliseconds that *statement* takes in a fresh interpreter."""
    script = SCRIPT.format(statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
