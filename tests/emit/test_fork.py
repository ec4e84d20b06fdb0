"""Requests that are open while their process forks."""

from __future__ import annotations

import os

import pytest

from otel_llm.testing import CapturedTelemetry
from tests.emit.builders import complete, opened


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_ends_nothing_of_its_parent(captured: CapturedTelemetry) -> None:
    """What is open belongs to the parent: the child neither ends it nor exports it."""
    live = opened(captured)
    child = os.fork()
    if child == 0:
        live.abandon()
        captured.telemetry.finish_open()
        os._exit(len(captured.spans))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    complete(live)
    assert [live.info.span_name] == [each for each in captured.tree() if "llm." not in each]
