"""Spans as they come by OTLP, as records for analysis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from otel_llm.analysis.spans import SpanRecord

_KINDS = ("internal", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")


def span_records(requests: Iterable[Any]) -> Iterator[SpanRecord]:
    """Every span of these `ExportTraceServiceRequest` messages."""
    for request in requests:
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    yield _record(span, resource, of_scope.scope.name or None)


def _record(span: Any, resource: dict[str, object], scope: str | None) -> SpanRecord:
    return SpanRecord(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or None,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        kind=_word(_KINDS, span.kind),
        attributes=_attributes(span.attributes),
        resource=resource,
        status=_word(_STATUSES, span.status.code),
        scope=scope,
    )


def _word(words: tuple[str, ...], number: int) -> str:
    """The word of that number; a number that nobody knows is as good as none."""
    return words[number] if 0 <= number < len(words) else words[0]


def _attributes(pairs: Iterable[Any]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> object:
    """The Python value of an `AnyValue`."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "array_value":
        return [_value(each) for each in found.values]
    return _attributes(found.values) if kind == "kvlist_value" else found
