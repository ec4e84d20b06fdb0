"""The span of one call that asks for many requests."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.live import LiveRequest, error_type_of
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.timeline import Side

MOST_SPANS = 1_000
"""Requests of one call that get spans; the others are counted, and measured like all."""


class BatchSpan:
    """`batch {operation} {model}`, INTERNAL, with the request spans of its call below it."""

    def __init__(self, telemetry: Telemetry, operation: str, model: str | None) -> None:
        self._telemetry = telemetry
        self._requests = 0
        self.anchor = Anchor.take(telemetry.clock)
        attributes: dict[str, Value] = {semconv.OPERATION: operation}
        if model is not None:
            attributes[semconv.REQUEST_MODEL] = model
        self._span = telemetry.tracer.start_span(
            f"batch {operation} {model}" if model else f"batch {operation}",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=self.anchor.wall_ns,
        )
        self.context = trace.set_span_in_context(self._span)

    def request(self, info: RequestInfo) -> LiveRequest:
        """The next request of the call, received when the call was; without a span after many."""
        self._requests += 1
        traced = self._requests <= MOST_SPANS
        start = self._telemetry.start if traced else self._telemetry.start_untraced
        return start(info, Side.ENGINE, parent=self.context, anchor=self.anchor)

    def finish(self, error: BaseException | None) -> None:
        """End the span, with the number of its requests and how the call failed."""
        self._span.set_attribute(semconv.BATCH_REQUESTS, self._requests)
        if self._requests > MOST_SPANS:
            self._span.set_attribute(semconv.BATCH_UNTRACED, self._requests - MOST_SPANS)
        if error is not None:
            self._span.set_attribute(semconv.ERROR_TYPE, error_type_of(error))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
