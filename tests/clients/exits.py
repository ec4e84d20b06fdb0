"""What the tests of leaving a stream share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import attributes, collected, request, requests
from tests.fakes.openai_server import ROLE, Answer, stream, word

LONG = stream(200)
CUT = Answer((ROLE, word(), word(), 0.01), cut=True)


@pytest.fixture(name="surroundings", autouse=True)
def surroundings_fixture(
    captured: CapturedTelemetry, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """The caller's span is current before and after, and nothing is logged as a warning."""
    tracer = captured.tracer_provider.get_tracer("caller")
    with tracer.start_as_current_span("caller", record_exception=False) as caller:
        yield
        assert trace.get_current_span() is caller
        assert {caller.get_span_context().span_id} == {
            each.parent.span_id for each in requests(captured)
        }
    collected()
    assert len(requests(captured)) == 1
    loud = [each.name for each in caplog.records if each.levelname in {"WARNING", "ERROR"}]
    assert [each for each in loud if each != "asyncio"] == []  # that one's are the library's


def ended(captured: CapturedTelemetry, outcome: str, status: StatusCode) -> bool:
    """Whether the one request has ended so."""
    span = request(captured)
    assert (outcome, status) == (span.attributes[semconv.OUTCOME], span.status.status_code)
    return True


def abandoned(captured: CapturedTelemetry) -> bool:
    """Whether the reader has left, and the reply is known to be incomplete."""
    assert attributes(captured)[semconv.INCOMPLETE] is True
    return ended(captured, "abandoned", StatusCode.UNSET)
