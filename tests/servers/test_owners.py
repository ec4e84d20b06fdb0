"""Whoever else traces HTTP: there is exactly one SERVER span, and the request span below it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import SpanKind

from otel_llm import semconv
from otel_llm.emit.live import current_request
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry
from tests.fakes.asgi import CHAT, Connection
from tests.servers.builders import PARENT, REQUEST, TRACE_ID

OFF = {"tracing": False, "metrics": False, "logs": False}


def fastapi(captured: CapturedTelemetry, **telemetry: Any) -> FastAPI:
    """A chat route; telemetry of FastAPI's own only as it is told."""
    app = FastAPI(telemetry={"auto_configure": False, **OFF, **telemetry})

    @app.post(CHAT)
    async def chat(_body: dict[str, Any]) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            live = current_request()
            assert live is not None
            yield b"data: x\n\n"
            live.recorder.finish_reasons = ("stop",)

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


def inside(app: FastAPI, captured: CapturedTelemetry) -> FastAPI:
    """Our middleware where applications add theirs."""
    app.add_middleware(InferenceMiddleware, telemetry=captured.telemetry)
    return app


def nobody(captured: CapturedTelemetry) -> Any:
    """No other tracing."""
    return inside(fastapi(captured), captured)


def native(captured: CapturedTelemetry) -> Any:
    """FastAPI's own tracing."""
    own = {"tracing": True, "tracer_provider": captured.tracer_provider}
    return inside(fastapi(captured, **own), captured)


def contrib_asgi(captured: CapturedTelemetry) -> Any:
    """Contrib's ASGI middleware around everything."""
    return OpenTelemetryMiddleware(
        inside(fastapi(captured), captured),
        tracer_provider=captured.tracer_provider,
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["send", "receive"],
    )


def contrib_asgi_within(captured: CapturedTelemetry) -> Any:
    """Contrib's ASGI middleware inside ours."""
    within = OpenTelemetryMiddleware(
        fastapi(captured),
        tracer_provider=captured.tracer_provider,
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["send", "receive"],
    )
    return InferenceMiddleware(within, captured.telemetry)


def contrib_fastapi(captured: CapturedTelemetry) -> Any:
    """Contrib's instrumentation of FastAPI."""
    app = inside(fastapi(captured), captured)
    FastAPIInstrumentor.instrument_app(
        app,
        tracer_provider=captured.tracer_provider,
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["send", "receive"],
    )
    return app


OWNERS = [nobody, native, contrib_asgi, contrib_asgi_within, contrib_fastapi]


async def ask(made: Callable[..., Any], captured: CapturedTelemetry) -> None:
    """One streamed chat with a caller's trace."""
    await Connection().serve(made(captured), headers={"traceparent": PARENT})


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
class TestOwners:
    """Whoever makes the SERVER span."""

    async def test_one_server_span(
        self, captured: CapturedTelemetry, owner: Callable[..., Any]
    ) -> None:
        """Never none, never two."""
        await ask(owner, captured)
        assert [each.kind for each in captured.spans if each.kind is not SpanKind.INTERNAL] == [
            SpanKind.SERVER
        ]

    async def test_the_request_span_is_below_it(
        self, captured: CapturedTelemetry, owner: Callable[..., Any]
    ) -> None:
        """In the caller's trace, as its child."""
        await ask(owner, captured)
        (server,) = [each for each in captured.spans if each.kind is SpanKind.SERVER]
        request = captured.span(REQUEST)
        assert (TRACE_ID, server.context.span_id) == (
            request.context.trace_id,
            request.parent.span_id,
        )
        assert request.attributes[semconv.OUTCOME] == "ok"
