"""Clients of one's own under instrumentation: answers, fixtures, and what is seen of a request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

import otel_llm
from otel_llm import config, semconv
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from otel_llm.tracing import TracedRequest
from tests.clients.builders import attributes, request, requests
from tests.fakes.openai_server import ROLE, Answer, OpenAIServer, serving, stream, word

LONG = stream(300)
CUT = Answer((ROLE, word(), word(), 0.01), cut=True)
IDLE = Answer((*stream().pieces[:-2], 30.0))
Server = Callable[[Answer], str]


@pytest.fixture(name="captured")
def captured_fixture() -> CapturedTelemetry:
    """Telemetry in memory; no library is patched."""
    captured = captured_telemetry()
    otel_llm.instrument(engines=[], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return captured


@pytest.fixture(name="server")
def server_fixture() -> Iterator[Server]:
    """The address of a server that answers so."""
    running: list[Any] = []

    def start(answer: Answer) -> str:
        running.append(serving(answer))
        made: OpenAIServer = running[-1].__enter__()
        return made.url

    yield start
    for each in running:
        each.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def surroundings(captured: CapturedTelemetry, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """One span at most, the caller's span current after all, nothing logged as an error."""
    yield
    gc.collect()
    assert len(requests(captured)) <= 1
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


def traced() -> TracedRequest:
    """A request of a client of one's own."""
    return otel_llm.trace_request("chat", model="tiny", provider="mine", side="client")


def ended(captured: CapturedTelemetry, outcome: str, status: StatusCode) -> bool:
    """Whether the one request has ended so."""
    span = request(captured)
    assert (outcome, status) == (span.attributes[semconv.OUTCOME], span.status.status_code)
    return True


def abandoned(captured: CapturedTelemetry) -> bool:
    """Whether the reader has left, and the reply is known to be incomplete."""
    assert attributes(captured)[semconv.INCOMPLETE] is True
    return ended(captured, "abandoned", StatusCode.UNSET)
