"""Requests that the garbage collector ends: it may come by anywhere, also inside the SDK."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from otel_llm import semconv
from otel_llm.emit.live import LiveRequest
from otel_llm.testing import CapturedTelemetry
from tests.emit.builders import opened, written

REPO = Path(__file__).parents[2]
COLLECTED = """
    import gc, os, threading
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from otel_llm.emit.request import RequestInfo
    from otel_llm.emit.telemetry import Telemetry
    from otel_llm.timeline import Side

    class Bounds(list):
        # The SDK looks for a value's bucket with its lock held; any allocation there may collect.
        def __len__(self):
            gc.collect()
            return super().__len__()

    def serve():
        live = telemetry.start(info, Side.SERVER)
        live.recorder.ending(end_record=True)
        live.finish()

    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    telemetry = Telemetry(None, meters)
    info = RequestInfo("chat", "demo", "tiny")
    serve()
    for each in gc.get_objects():
        if type(each).__name__ == "_ExplicitBucketHistogramAggregation":
            each._boundaries = Bounds(each._boundaries)
    lost = telemetry.start(info, Side.SERVER)
    lost.annotate({"itself": lost})
    del lost
    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    worker.join(2)
    print("hangs" if worker.is_alive() else "served", flush=True)
    os._exit(0)
"""


class Owner:
    """Something of the application that holds a request, and itself."""

    def __init__(self, live: LiveRequest) -> None:
        self.live = live
        self.itself: Owner | None = None


def test_dropped_in_a_cycle(captured: CapturedTelemetry) -> None:
    """A collection ends it where references go in a circle, a moment later."""
    owner = Owner(opened(captured))
    owner.itself = owner
    del owner
    gc.collect()
    deadline = time.monotonic() + 2
    while not captured.spans and time.monotonic() < deadline:
        time.sleep(0.001)
    assert written(captured)[semconv.OUTCOME] == "abandoned"


def test_while_a_metric_is_recorded() -> None:
    """Inside the SDK's lock, which is not reentrant, nothing hangs."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COLLECTED)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=REPO,
    )
    assert done.stdout.strip() == "served"
