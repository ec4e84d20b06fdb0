"""The span of one call that asks for many requests."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanKind, StatusCode

from otel_llm import semconv
from otel_llm.emit.batch import MOST_SPANS, BatchSpan
from otel_llm.testing import START_WALL_NS, CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import INFO, NAME, Spy, complete, written

BATCH = "batch chat tiny"


def batch(captured: CapturedTelemetry, requests: int = 0) -> BatchSpan:
    """A call whose *requests* have ended well."""
    made = BatchSpan(captured.telemetry, "chat", "tiny")
    for _ in range(requests):
        complete(made.request(INFO))
    return made


def test_span(captured: CapturedTelemetry) -> None:
    """INTERNAL, named after operation and model; its status says nothing where all is well."""
    batch(captured, 2).finish(None)
    span = captured.span(BATCH)
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        semconv.OPERATION: "chat",
        semconv.REQUEST_MODEL: "tiny",
        semconv.BATCH_REQUESTS: 2,
    }


def test_without_a_model(captured: CapturedTelemetry) -> None:
    """The operation alone."""
    BatchSpan(captured.telemetry, "chat", None).finish(None)
    assert semconv.REQUEST_MODEL not in written(captured, "batch chat")


def test_requests_are_children(captured: CapturedTelemetry) -> None:
    """Each below the batch."""
    batch(captured, 2).finish(None)
    assert [each for each in captured.tree() if "llm." not in each] == [BATCH, *[f"  {NAME}"] * 2]


def test_times(captured: CapturedTelemetry, clock: ManualClock) -> None:
    """Requests are received when the call is, however late they are known of."""
    made = batch(captured)
    clock.advance(2)
    complete(made.request(INFO))
    made.finish(None)
    span, request = captured.span(BATCH), captured.span(NAME)
    assert (span.start_time, request.start_time) == (START_WALL_NS, START_WALL_NS)
    assert written(captured)[semconv.E2E_US] == 2_000_000


@pytest.mark.parametrize(
    ("error", "name"),
    [(ValueError("secret"), "ValueError"), (asyncio.CancelledError(), "asyncio.exceptions.")],
)
def test_failure(captured: CapturedTelemetry, error: BaseException, name: str) -> None:
    """An error, by its class and never by its message."""
    batch(captured).finish(error)
    span = captured.span(BATCH)
    assert span.status.status_code is StatusCode.ERROR
    assert written(captured, BATCH)[semconv.ERROR_TYPE].startswith(name)
    assert "secret" not in span.to_json()


def test_a_full_batch(captured: CapturedTelemetry) -> None:
    """A thousand requests have spans, and no count of others."""
    batch(captured, MOST_SPANS).finish(None)
    assert MOST_SPANS == len([each for each in captured.spans if each.name == NAME]) == 1_000
    assert semconv.BATCH_UNTRACED not in written(captured, BATCH)


def test_more_requests(captured: CapturedTelemetry) -> None:
    """Further ones have none: they are counted, and measured like all."""
    batch(captured, MOST_SPANS + 2).finish(None)
    assert len([each for each in captured.spans if each.name == NAME]) == MOST_SPANS
    found = written(captured, BATCH)
    assert (found[semconv.BATCH_REQUESTS], found[semconv.BATCH_UNTRACED]) == (MOST_SPANS + 2, 2)
    assert captured.points(semconv.SERVER_DURATION)[0].count == MOST_SPANS + 2


def test_a_batch_that_is_not_sampled(clock: ManualClock) -> None:
    """Its requests are not either; their metrics are there."""
    captured = captured_telemetry(sampler=Spy(Decision.DROP), clock=clock)
    batch(captured, 2).finish(None)
    assert captured.spans == []
    assert captured.points(semconv.SERVER_DURATION)[0].count == 2
