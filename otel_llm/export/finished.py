"""Spans that are finished when they are made, handed to the exporting processor directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, SpanContext

from otel_llm.emit.telemetry import FinishedSpans


def finished_spans(processor: SpanProcessor, ids: IdGenerator) -> FinishedSpans:
    """Makes children of sampled spans without starting them, for *processor* alone.

    A phase is known whole when its request ends. Starting a live span for it, asking the sampler
    and copying it at its end costs four times as much; nobody could see it live.
    """
    new_id, on_end = ids.generate_span_id, processor.on_end

    def write(parent: Span, children: Iterable[tuple[str, Mapping[str, str], int, int]]) -> None:
        if not isinstance(parent, ReadableSpan):
            return
        owner, resource = parent.get_span_context(), parent.resource
        trace_id, flags, state = owner.trace_id, owner.trace_flags, owner.trace_state
        scope = parent.instrumentation_scope
        for name, attributes, start_ns, end_ns in children:
            span = ReadableSpan(
                name,
                SpanContext(trace_id, new_id(), False, flags, state),
                owner,
                resource,
                attributes,
                start_time=start_ns,
                end_time=end_ns,
                instrumentation_scope=scope,
            )
            on_end(span)

    return write
