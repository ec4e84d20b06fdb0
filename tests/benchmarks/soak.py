"""A long run of requests in one process: memory stays, nothing stays open, every span ends once.

python -m tests.benchmarks.soak [--requests 200000]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.telemetry import Telemetry
from otel_llm.timeline import Side
from tests.benchmarks.micro import recorded
from tests.benchmarks.report import Bound, write


class Counting(SpanProcessor):
    """Counts starts and ends."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """One more."""
        self.started += 1

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.ended += 1


def main() -> int:
    """Run the requests in batches, with the process's memory read after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    requests = parser.parse_args().requests
    spans = Counting()
    provider = TracerProvider()
    provider.add_span_processor(spans)
    telemetry = Telemetry(provider, MeterProvider([InMemoryMetricReader()]))
    source = random.Random(1)
    resident = []
    for _ in range(10):
        for _ in range(requests // 10):
            source.choice(ENDINGS)(telemetry, source)
        gc.collect()
        resident.append(resident_kib())
    result = {
        "requests": requests,
        "resident_kib": resident,
        "spans_started": spans.started,
        "spans_ended": spans.ended,
        "still_open": len(telemetry._open),
    }
    bounds = [
        Bound("spans that did not end once", abs(spans.started - spans.ended), 0),
        Bound("requests still open", len(telemetry._open), 0),
        Bound(
            "growth from the second tenth to the last, KiB",
            max(0, resident[-1] - resident[1]),
            4096,
        ),
    ]
    return write("soak", result, bounds)


def finished(telemetry: Telemetry, source: random.Random) -> None:
    """A request that ends well."""
    live = recorded(telemetry)
    live.recorder.lanes[0].stamps *= source.randint(1, 200)
    live.finish()


def failed(telemetry: Telemetry, source: random.Random) -> None:
    """A request that fails, with a model name nobody has seen before."""
    info = RequestInfo("chat", "vllm", f"model-{source.random()}")
    live = telemetry.start(info, Side.SERVER)
    live.fail(ValueError("x"), refused=source.random() < 0.5)
    live.finish()


def dropped(telemetry: Telemetry, source: random.Random) -> None:
    """A request that nobody ends."""
    held: list[LiveRequest] = [recorded(telemetry)]
    held.clear()


ENDINGS: list[Callable[[Telemetry, random.Random], None]] = [finished, failed, dropped]


def resident_kib() -> int:
    """Resident memory of this process in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    sys.exit(main())
