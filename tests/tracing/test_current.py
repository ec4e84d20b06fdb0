"""`current_request`: what an engine of one's own tells of the request that a server opened."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from otel_llm import InferenceMiddleware, Mark, Phase, current_request, semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.tracing.builders import NAME, outcome, request


@pytest.fixture
def facts(in_force: CapturedTelemetry, clock: ManualClock) -> Any:
    """Ask an application whose engine tells when it did what; the request span's attributes."""

    async def ask(engine: Any) -> dict[str, Any]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            engine()
            start = {"type": "http.response.start", "status": 200, "headers": []}
            await send(start)
            await send({"type": "http.response.body", "body": b'{"choices": []}'})

        transport = httpx.ASGITransport(app=InferenceMiddleware(app, provider="mine"))
        async with httpx.AsyncClient(transport=transport, base_url="http://gpu-7") as client:
            await client.post("/v1/chat/completions", json={"model": "tiny"})
        return dict(in_force.span(NAME).attributes or {})

    return ask


async def test_an_engine_marks_the_request_of_its_server(facts: Any, clock: ManualClock) -> None:
    """Marks and outputs with instants, counted tokens and usage, on the middleware's span."""

    def engine() -> None:
        here = current_request()
        start = clock.monotonic_ns()
        clock.advance(1)
        here.mark(Mark.QUEUED, start + 100_000_000)
        here.mark(Mark.SCHEDULED, start + 300_000_000)
        for after in (600_000_000, 700_000_000, 900_000_000):
            here.output(2, start + after)
        here.usage(input_tokens=5)

    found = await facts(engine)
    assert [found[semconv.phase_us(phase)] for phase in ("queue", "prefill", "decode")] == [
        200_000,
        300_000,
        300_000,
    ]
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (5, 6)


async def test_its_with_block_ends_nothing(
    facts: Any, in_force: CapturedTelemetry, clock: ManualClock
) -> None:
    """The server ends the request when the reply has been handed over, and not before."""

    def engine() -> None:
        with current_request() as here:
            here.reported(Phase.QUEUE, 0.25)
            clock.advance(1)
        assert not in_force.spans

    await facts(engine)
    assert outcome(in_force) == ("ok", None, False)


def test_without_a_request(in_force: CapturedTelemetry) -> None:
    """Everything can be called, and nothing is written."""
    with current_request() as here:
        here.mark(Mark.QUEUED)
        here.output()
    assert not in_force.spans


def test_of_an_active_request(in_force: CapturedTelemetry, clock: ManualClock) -> None:
    """Inside `active()` it is that request; it ends with its own block."""
    with request() as outer, outer.active():
        current_request().set({"app.order": 7})
        clock.advance(0.25)
    found = in_force.span(NAME).attributes or {}
    assert (found["app.order"], found[semconv.E2E_US]) == (7, 250_000)
