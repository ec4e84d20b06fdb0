"""What a collector in trouble costs: time in the caller per request, and time at the exit.

python -m tests.benchmarks.dead_collector [--requests 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.report import ROOT, Bound, write
from tests.benchmarks.sink import Sink
from tests.fakes.collectors import UNRESOLVED, hanging, refusing

MOST_ADDED_MS = 5.0
MOST_EXIT_S = 5.5
COLLECTORS = ("works", "refuses", "hangs", "does not resolve")
SCRIPT = """
import json, sys, time
from statistics import median
import otel_llm
url, requests = sys.argv[1], int(sys.argv[2])
otel_llm.configure(endpoint=url, engines=[])

def request():
    with otel_llm.trace_request("chat", model="tiny", provider="demo") as r:
        r.usage(input_tokens=7)
        for _ in range(20):
            r.output(1)

for _ in range(50):
    request()
taken = []
for _ in range(requests):
    time.sleep(0.001)
    started = time.perf_counter_ns()
    request()
    taken.append(time.perf_counter_ns() - started)
taken.sort()
p99 = taken[int(len(taken) * 0.99)] / 1e6
print(json.dumps({"p50_ms": median(taken) / 1e6, "p99_ms": p99, "max_ms": taken[-1] / 1e6,
                  "ended": time.monotonic()}))
"""


def main() -> int:
    """Run each collector in turn, and once no exporter, in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    base = run(UNRESOLVED, given.requests, exports=False)
    seen = {}
    bounds = []
    for name in COLLECTORS:
        with collector(name) as url:
            seen[name] = run(url, given.requests)
        added = max(seen[name]["p99_ms"] - base["p99_ms"], 0)
        bounds += [
            Bound(f"{name}: added at p99, ms", added, MOST_ADDED_MS),
            Bound(f"{name}: exit, s", seen[name]["exit_s"], MOST_EXIT_S),
        ]
    result = {"requests": given.requests, "no_exporter": base, "collectors": seen}
    return write("dead_collector", result, bounds)


@contextmanager
def collector(name: str) -> Iterator[str]:
    """The address of a collector of that kind."""
    if name == "works":
        with Sink() as sink:
            yield sink.url
    elif name == "hangs":
        with hanging() as url:
            yield url
    else:
        yield refusing() if name == "refuses" else UNRESOLVED


def run(url: str, requests: int, *, exports: bool = True) -> dict[str, float]:
    """One process: milliseconds per request in the caller, and seconds until it has ended."""
    environ = {} if exports else {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, str(requests)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=120,
        cwd=ROOT,
    )
    found: dict[str, float] = json.loads(done.stdout)
    found["exit_s"] = time.monotonic() - found.pop("ended")
    return found


if __name__ == "__main__":
    sys.exit(main())
