"""A request ends once, whoever ends it."""

from __future__ import annotations

import threading

from otel_llm.testing import CapturedTelemetry
from tests.emit.builders import opened


def test_threads_that_end_the_same_request(captured: CapturedTelemetry) -> None:
    """Of eight threads that finish it at once, one does."""
    lives = [opened(captured) for _ in range(50)]
    gate = threading.Barrier(8)

    def end_all() -> None:
        gate.wait()
        for live in lives:
            live.finish()

    threads = [threading.Thread(target=end_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lives) == len([each for each in captured.spans if "llm." not in each.name])


def test_what_hangs_on_its_end_runs_once(captured: CapturedTelemetry) -> None:
    """The callback is told the timeline, whoever ended the request."""
    told = []
    live = opened(captured)
    live.on_finish = told.append
    captured.telemetry.finish_open()
    live.finish()
    assert [live.timeline] == told
