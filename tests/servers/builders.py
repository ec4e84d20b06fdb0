"""Short ways to serve one request, and to its two spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_llm import semconv
from otel_llm.servers.asgi import InferenceMiddleware, ServerSettings
from otel_llm.testing import CapturedTelemetry
from tests.fakes.asgi import (
    CHAT,
    App,
    Connection,
    chunk,
    replies,
    start,
)

SERVER, REQUEST = f"POST {CHAT}", "chat tiny"
PARENT = "00-11112222333344445555666677778888-aaaabbbbccccdddd-01"
TRACE_ID, SPAN_ID = 0x11112222333344445555666677778888, 0xAAAABBBBCCCCDDDD
ANSWER = replies(start(), chunk(b"{}", more=False))


async def serve(
    app: App,
    captured: CapturedTelemetry,
    connection: Connection | None = None,
    settings: ServerSettings | None = None,
    **parts: Any,
) -> Connection:
    """Serve one request with the middleware around *app*."""
    wrapped = InferenceMiddleware(app, captured.telemetry, settings)
    return await (connection or Connection()).serve(wrapped, **parts)


def pair(captured: CapturedTelemetry) -> tuple[ReadableSpan, ReadableSpan]:
    """The SERVER span and the request span."""
    return captured.span(SERVER), captured.span(REQUEST)


def outcome(captured: CapturedTelemetry) -> tuple[Any, ...]:
    """Outcome, `error.type` and incomplete mark of the request span."""
    found = captured.span(REQUEST).attributes
    names = (semconv.OUTCOME, semconv.ERROR_TYPE, semconv.INCOMPLETE)
    return tuple(found.get(name) for name in names)
