"""Flatten OTLP JSON, as Jaeger answers it and the Collector's file exporter writes it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
Span = dict[str, Any]


def spans(document: Json) -> list[Span]:
    """Return the spans of one `TracesData` document, each as one flat dictionary."""
    return list(_spans(document))


def _spans(document: Json) -> Iterator[Span]:
    """Yield the spans with what they inherit from their resource and scope."""
    for of_resource in document.get("resourceSpans", ()):
        resource = attributes(of_resource.get("resource", {}))
        for of_scope in of_resource.get("scopeSpans", ()):
            shared = _scope(of_scope) | {"resource": resource}
            for span in of_scope.get("spans", ()):
                yield _span(span) | shared


def _scope(of_scope: Json) -> Span:
    """Return what the spans of one scope share."""
    scope = of_scope.get("scope", {})
    return {
        "scope": scope.get("name", ""),
        "scope_version": scope.get("version", ""),
        "scope_attributes": attributes(scope),
        "schema_url": of_scope.get("schemaUrl", ""),
    }


def _span(span: Json) -> Span:
    """Return the span's own fields; kinds and statuses are numbers."""
    status = span.get("status", {})
    return {
        "trace_id": span["traceId"],
        "span_id": span["spanId"],
        "parent_span_id": span.get("parentSpanId", ""),
        "trace_state": span.get("traceState", ""),
        "name": span.get("name", ""),
        "kind": int(span.get("kind", 0)),
        "start_ns": int(span.get("startTimeUnixNano", 0)),
        "end_ns": int(span.get("endTimeUnixNano", 0)),
        "attributes": attributes(span),
        "events": [_event(event) for event in span.get("events", ())],
        "links": [_link(link) for link in span.get("links", ())],
        "status_code": int(status.get("code", 0)),
        "status_message": status.get("message", ""),
    }


def _event(event: Json) -> Span:
    """Return one span event."""
    return {
        "name": event.get("name", ""),
        "time_ns": int(event.get("timeUnixNano", 0)),
        "attributes": attributes(event),
    }


def _link(link: Json) -> Span:
    """Return one span link."""
    return {
        "trace_id": link["traceId"],
        "span_id": link["spanId"],
        "attributes": attributes(link),
    }


def attributes(holder: Json) -> dict[str, Any]:
    """Return the attributes of a span, event, link, resource or scope as Python values."""
    return {item["key"]: value(item.get("value", {})) for item in holder.get("attributes", ())}


def value(any_value: Json) -> Any:
    """Return the Python value of one `AnyValue`."""
    for kind, content in any_value.items():
        match kind:
            case "intValue":
                return int(content)
            case "doubleValue":
                return float(content)
            case "bytesValue":
                return base64.b64decode(content)
            case "arrayValue":
                return [value(item) for item in content.get("values", ())]
            case "kvlistValue":
                pairs = content.get("values", ())
                return {pair["key"]: value(pair.get("value", {})) for pair in pairs}
            case _:
                return content
    return None
