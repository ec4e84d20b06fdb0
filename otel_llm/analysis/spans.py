"""A span as analysis reads it, and readers that make one from what others keep.

Readers: `from_sdk` for spans that ended in this process. Stored spans (OTLP, Jaeger, Tempo) get
readers of their own beside it; whatever they read becomes a `SpanRecord` and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One finished span. Times are nanoseconds since the Unix epoch on the clock of its host.

    Ids are lower-case hex; `parent_span_id` is None on a root. `kind` and `status` are the
    conventions' words in lower case, `scope` is the name of the instrumentation scope. Nothing is
    promised of attribute values: they are what somebody stored.
    """

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    start_ns: int
    end_ns: int
    kind: str = "internal"
    attributes: Mapping[str, object] = field(default_factory=dict)
    resource: Mapping[str, object] = field(default_factory=dict)
    status: str = "unset"
    scope: str | None = None


def from_sdk(spans: Iterable[Any]) -> Iterator[SpanRecord]:
    """The SDK's `ReadableSpan` objects as records; one without a context is left out."""
    for span in spans:
        if span.context is not None:
            yield _from_readable(span)


def _from_readable(span: Any) -> SpanRecord:
    scope = span.instrumentation_scope
    return SpanRecord(
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_span_id=f"{span.parent.span_id:016x}" if span.parent is not None else None,
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        kind=span.kind.name.lower(),
        attributes=dict(span.attributes or {}),
        resource=dict(span.resource.attributes),
        status=span.status.status_code.name.lower(),
        scope=scope.name if scope is not None else None,
    )
