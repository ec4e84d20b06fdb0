"""Our bytes, read back by the official classes, are what the official encoder makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from otel_llm.export.encode import DEEPEST, encoded, varint

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = TEXT | INT64 | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=200)
VALUES = PLAIN | st.recursive(
    st.lists(PLAIN, max_size=4).map(tuple),
    lambda inner: st.dictionaries(TEXT, inner | PLAIN, max_size=3),
    max_leaves=6,
)
ATTRIBUTES = st.dictionaries(TEXT.filter(bool), VALUES, max_size=6)
TIMES = st.integers(0, 2**64 - 1)
STATES = st.just(TraceState()) | st.just(TraceState([("ot", "th:0"), ("v", "1")]))
CONTEXTS = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from([TraceFlags(0), TraceFlags(1)]),
    STATES,
)
STATUSES = st.builds(Status, st.sampled_from([StatusCode.UNSET, StatusCode.OK])) | st.builds(
    Status, st.just(StatusCode.ERROR), TEXT
)
RESOURCES = st.builds(Resource, ATTRIBUTES, TEXT)
SCOPES = st.builds(InstrumentationScope, TEXT, TEXT, TEXT, ATTRIBUTES)


def span_of(resources: Sequence[Resource], scopes: Sequence[InstrumentationScope]) -> Any:
    """Spans in all their variety, of some resources and scopes."""
    return st.builds(
        ReadableSpan,
        name=TEXT,
        context=CONTEXTS,
        parent=st.none() | CONTEXTS,
        resource=st.sampled_from(resources),
        attributes=ATTRIBUTES,
        events=st.lists(st.builds(Event, TEXT, ATTRIBUTES, TIMES), max_size=3),
        links=st.lists(st.builds(Link, CONTEXTS, ATTRIBUTES), max_size=3),
        kind=st.sampled_from(SpanKind),
        status=STATUSES,
        start_time=TIMES,
        end_time=TIMES,
        instrumentation_scope=st.sampled_from(scopes),
    )


BATCHES = st.tuples(
    st.lists(RESOURCES, min_size=1, max_size=2, unique=True),
    st.lists(SCOPES, min_size=1, max_size=2, unique_by=lambda s: (s.name, s.version, s.schema_url)),
).flatmap(lambda owners: st.lists(span_of(*owners), min_size=1, max_size=5))


def read(spans: Sequence[ReadableSpan], **limits: int) -> list[ExportTraceServiceRequest]:
    """Our requests, as a receiver reads them."""
    return [ExportTraceServiceRequest.FromString(r.body) for r in encoded(spans, **limits)]


def inside(request: ExportTraceServiceRequest) -> list[Any]:
    """All spans of a request."""
    return [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]


def finished(**limits: Any) -> tuple[Any, InMemorySpanExporter]:
    """A tracer, and where its spans come to."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return provider.get_tracer("app"), memory


@given(BATCHES)
def test_the_same_message(spans: list[ReadableSpan]) -> None:
    """Everything a span can hold arrives as it does from the official encoder."""
    (request,) = read(spans)
    assert request == encode_spans(spans)


@given(BATCHES, st.integers(1, 3000))
def test_split_and_cut(spans: list[ReadableSpan], limit: int) -> None:
    """Whatever the limits, each span arrives once, in order within its scope, and is readable."""
    requests = read(spans, largest_request=limit, longest_text=limit)
    sent = sorted(s.span_id for r in requests for s in inside(r))
    assert sent == sorted(s.context.span_id.to_bytes(8, "big") for s in spans)
    assert all(r.ByteSize() <= limit or len(inside(r)) == 1 for r in requests)


@given(st.lists(st.text(st.characters(), max_size=50), min_size=1, max_size=5))
def test_any_text(texts: list[str]) -> None:
    """Lone surrogates are replaced wherever they stand; the rest stays."""
    tracer, memory = finished()
    span = tracer.start_span("".join(texts))
    span.set_attributes({f"k{text}": text for text in texts})
    span.end()
    ((found,),) = map(inside, read(memory.get_finished_spans()))
    assert len(found.name) >= len("".join(texts).encode("utf-16", "ignore").decode("utf-16"))


def test_what_was_dropped_is_counted() -> None:
    """Attributes, events and links beyond the SDK's limits."""
    tracer, memory = finished(max_span_attributes=1, max_events=1, max_links=1)
    link = Link(SpanContext(1, 2, is_remote=True))
    span = tracer.start_span("a", attributes={"a": 1, "b": 2}, links=[link, link, link])
    for _ in range(3):
        span.add_event("e")
    span.end()
    spans = memory.get_finished_spans()
    (request,) = read(spans)
    (found,) = inside(request)
    counts = (
        found.dropped_attributes_count,
        found.dropped_events_count,
        found.dropped_links_count,
    )
    assert counts == (1, 2, 2)
    assert request == encode_spans(spans)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_an_integer_that_does_not_fit(value: int) -> None:
    """It is counted as dropped; its neighbours arrive."""
    tracer, memory = finished()
    tracer.start_span("a", attributes={"large": value, "text": "x"}).end()
    ((found,),) = map(inside, read(memory.get_finished_spans()))
    assert [each.key for each in found.attributes] == ["text"]
    assert found.dropped_attributes_count == 1


def test_depth_has_a_limit() -> None:
    """Values inside values end at a depth that receivers accept."""
    value: Any = "deep"
    for _ in range(3 * DEEPEST):
        value = {"in": value}
    tracer, memory = finished()
    tracer.start_span("a", attributes={"nested": value, "text": "x"}).end()
    ((found,),) = map(inside, read(memory.get_finished_spans()))
    assert {each.key for each in found.attributes} >= {"text"}


def test_no_scope() -> None:
    """Spans without a scope, and a child of a remote parent."""
    parent = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
    context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    tracer, memory = finished()
    tracer.start_span("a", context).end()
    (made,) = memory.get_finished_spans()
    spans = [ReadableSpan("b", made.context, made.parent, made.resource, start_time=1, end_time=2)]
    assert read(spans) == [encode_spans(spans)]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 4095, 4096, 16_383, 16_384, 2**63, 2**64 - 1])
def test_varint(number: int) -> None:
    """Seven bits a byte, the least significant first, the last without the high bit."""
    found = varint(number)
    assert sum((byte & 0x7F) << 7 * n for n, byte in enumerate(found)) == number
    assert [byte >> 7 for byte in found] == [1] * (len(found) - 1) + [0]
