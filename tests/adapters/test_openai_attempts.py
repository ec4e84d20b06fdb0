"""Retries of the OpenAI client stay in one span, and nothing is done where nothing is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from opentelemetry import metrics
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.telemetry import Telemetry
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.clients.builders import STREAMED, WHOLE, aclient, attributes, client, outcomes, requests
from tests.clients.fixtures import captured_fixture, serve_fixture  # noqa: F401 - fixtures
from tests.fakes.openai_server import Answer, OpenAIServer, failing, stream, whole

RETRY_US = semconv.phase_us("retry")
Serve = Callable[..., OpenAIServer]
AGAIN = {"retry-after-ms": "50"}
BUSY = failing(503, headers=AGAIN)
LIMITED = failing(429, headers=AGAIN)
LOST = Answer((b"{",), content_type="application/json", cut=True)
ANSWER = stream(5, first=0.02)


def retried(captured: CapturedTelemetry, server: OpenAIServer, attempts: int) -> Any:
    """What is on the one span, after checking that every attempt was sent in its name."""
    (span,) = requests(captured)
    sent = [each.headers["traceparent"] for each in server.asked]
    assert [1] * attempts == [len(each) for each in sent]
    assert {f"{span.get_span_context().span_id:016x}"} == {each[0].split("-")[2] for each in sent}
    assert attempts == span.attributes[semconv.ATTEMPTS]
    return span.attributes


def test_a_stream_at_the_third_attempt(captured: CapturedTelemetry, serve: Serve) -> None:
    """Time to first token is that of the attempt that was answered; the others are `retry`."""
    server = serve(LIMITED, BUSY, ANSWER)
    began = time.monotonic()
    with client(server, max_retries=2) as using:
        list(using.chat.completions.create(**STREAMED))
    took = time.monotonic() - began
    found = retried(captured, server, 3)
    assert found[semconv.OUTCOME] == "ok"
    assert 100_000 <= found[RETRY_US] <= took * 1e6 - 20_000
    assert 20_000 <= found[semconv.TTFT_US] <= (took - 0.1) * 1e6
    assert found[semconv.E2E_US] >= 120_000
    assert "  llm.retry" in captured.tree()


async def test_async(captured: CapturedTelemetry, serve: Serve) -> None:
    """The same of an asynchronous client."""
    server = serve(BUSY, whole())
    async with aclient(server, max_retries=1) as using:
        await using.chat.completions.create(**WHOLE)
    found = retried(captured, server, 2)
    assert found[semconv.OUTCOME] == "ok"
    assert found[RETRY_US] >= 50_000


def test_one_attempt_is_not_counted(captured: CapturedTelemetry, serve: Serve) -> None:
    """No retry, no phase and no attribute."""
    with client(serve(whole()), max_retries=2) as using:
        using.chat.completions.create(**WHOLE)
    assert not {semconv.ATTEMPTS, RETRY_US} & set(attributes(captured))


def test_all_attempts_refused(captured: CapturedTelemetry, serve: Serve) -> None:
    """The last answer tells how it ended."""
    server = serve(BUSY)
    with client(server, max_retries=2) as using, pytest.raises(openai.InternalServerError):
        using.chat.completions.create(**WHOLE)
    assert retried(captured, server, 3)[semconv.OUTCOME] == "rejected"


def test_after_a_timeout(captured: CapturedTelemetry, serve: Serve) -> None:
    """A first attempt without an answer in time."""
    server = serve(stream(headers_after=0.4), whole())
    with client(server, max_retries=1, timeout=0.2) as using:
        using.chat.completions.create(**WHOLE)
    assert retried(captured, server, 2)[semconv.OUTCOME] == "ok"


def test_with_options(captured: CapturedTelemetry, serve: Serve) -> None:
    """Retries given for one call."""
    server = serve(BUSY, whole())
    with client(server) as using:
        using.with_options(max_retries=1).chat.completions.create(**WHOLE)
    assert retried(captured, server, 2)[semconv.OUTCOME] == "ok"


@pytest.fixture
def nothing() -> None:
    """Patched, with no trace sampled and no metrics."""
    tracers = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    meters = metrics.NoOpMeterProvider()
    otel_llm.instrument(engines=["openai"], tracer_provider=tracers, meter_provider=meters)
    config.RUNTIME.telemetry = Telemetry(tracers, meters)


@pytest.mark.usefixtures("nothing")
def test_the_very_object(serve: Serve) -> None:
    """Nothing to write: the stream is exactly the library's, and nothing is on it."""
    with client(serve(stream())) as using:
        opened = using.chat.completions.create(**STREAMED)
        assert type(opened) is openai.Stream
        assert type(opened.response).__module__.startswith("httpx")
        assert not any("otel" in name for name in vars(opened) | vars(opened.response))
        assert not opened._iterator.gi_running
        assert len(list(opened)) == 8


@pytest.mark.usefixtures("nothing")
async def test_the_very_async_object(serve: Serve) -> None:
    """The same of an asynchronous client."""
    async with aclient(serve(stream())) as using:
        opened = await using.chat.completions.create(**STREAMED)
        assert type(opened) is openai.AsyncStream
        assert not any("otel" in name for name in vars(opened) | vars(opened.response))
        assert len([each async for each in opened]) == 8


@pytest.mark.usefixtures("nothing")
def test_the_trace_goes_on_unsampled(serve: Serve) -> None:
    """The server is told that the trace is not sampled."""
    server = serve(whole())
    with client(server) as using:
        using.chat.completions.create(**WHOLE)
    (sent,) = server.last.headers["traceparent"]
    assert int(sent.split("-")[3], 16) & 1 == 0


def test_sampled_out_but_metered(serve: Serve) -> None:
    """Metrics of a request whose trace is not sampled; no span at all."""
    captured = captured_telemetry(sampler=ALWAYS_OFF)
    otel_llm.instrument(engines=["openai"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    with client(serve(stream())) as using:
        list(using.chat.completions.create(**STREAMED))
    assert captured.spans == []
    (duration,) = captured.points("gen_ai.client.operation.duration")
    assert duration.count == 1
    phases = {each.attributes["phase"] for each in captured.points(semconv.PHASE_DURATION)}
    assert "first_token" in phases


def test_outcomes_stay_apart(captured: CapturedTelemetry, serve: Serve) -> None:
    """Two calls of one client, the first of which failed."""
    with client(serve(failing(500), whole())) as using:
        with pytest.raises(openai.InternalServerError):
            using.chat.completions.create(**WHOLE)
        using.chat.completions.create(**WHOLE)
    assert outcomes(captured) == ["error", "ok"]
