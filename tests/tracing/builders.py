"""Short ways to a request of one's own."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import config, semconv, trace_request
from otel_llm.testing import CapturedTelemetry
from otel_llm.tracing import TracedRequest

NAME = "chat tiny"


@pytest.fixture
def in_force(captured: CapturedTelemetry) -> CapturedTelemetry:
    """Telemetry in memory, in force for `trace_request`."""
    config.RUNTIME.telemetry = captured.telemetry
    return captured


def request(**more: Any) -> TracedRequest:
    """A chat with the model `tiny`."""
    given: dict[str, Any] = {"model": "tiny", "provider": "demo"} | more
    return trace_request("chat", **given)


def outcome(captured: CapturedTelemetry) -> tuple[Any, Any, bool]:
    """Outcome, `error.type` and incomplete mark of the one request."""
    found = captured.span(NAME).attributes
    return (
        found[semconv.OUTCOME],
        found.get(semconv.ERROR_TYPE),
        found.get(semconv.INCOMPLETE, False),
    )
