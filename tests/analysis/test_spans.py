"""Spans of the SDK as records, and what the library itself writes as a request."""

from __future__ import annotations

from types import SimpleNamespace

from otel_llm import semconv
from otel_llm.analysis import from_sdk, requests_of
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Side
from tests.emit.builders import NAME, attached, complete, generated, opened


def seen() -> CapturedTelemetry:
    """A client whose server takes 71 ms; a millisecond on the way there, two on the way back."""
    clock = ManualClock()
    captured = captured_telemetry(clock=clock)
    client = opened(captured, Side.CLIENT)
    clock.advance(0.001)
    with attached(client.context):
        server = opened(captured, Side.SERVER)
    complete(generated(server, clock))
    clock.advance(0.002)
    complete(client)
    return captured


def test_a_span_of_the_sdk_keeps_what_it_says() -> None:
    """Ids, parent, times, kind, attributes, resource and scope."""
    spans = seen().spans
    records = {each.span_id: each for each in from_sdk(spans)}
    server = next(
        each for each in records.values() if each.attributes.get(semconv.SIDE) == "server"
    )
    assert server.parent_span_id is not None
    client = records[server.parent_span_id]
    assert (
        server.name,
        client.kind,
        server.kind,
        server.status,
    ) == (NAME, "client", "internal", "unset")
    assert server.trace_id == client.trace_id
    assert (len(client.trace_id), len(client.span_id)) == (32, 16)
    assert client.parent_span_id is None
    assert server.end_ns - server.start_ns == 71_000_000
    assert server.scope == semconv.SCOPE
    assert "service.name" in server.resource


def test_a_span_without_a_context_is_left_out() -> None:
    """There is nothing to know it by."""
    assert list(from_sdk([SimpleNamespace(context=None)])) == []


def test_what_the_library_writes_is_a_request() -> None:
    """From open spans to a ledger: the phases that were marked, and three milliseconds of way."""
    request = requests_of(from_sdk(seen().spans)).requests[0]
    assert {name: each.us for name, each in request.durations.items()} == {
        "network": 3_000,
        "preprocess": 0,
        "queue": 10_000,
        "prefill": 20_000,
        "first_token": 5_000,
        "decode": 35_000,
        "delivery": 1_000,
        "unaccounted": 0,
    }
    assert request.inner(semconv.INPUT_TOKENS) == 7
