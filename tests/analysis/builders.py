"""Short ways to write request spans down. Times are milliseconds unless a name says otherwise."""

from __future__ import annotations

from typing import Any

from otel_llm import semconv
from otel_llm.analysis import Request, SpanRecord, requests_of

START_NS = 1_764_460_800_000_000_000
PHASES = {"retry", "preprocess", "load", "queue", "prefill", "first_token", "decode", "delivery"}


def side(  # one span has this many facts
    which: str,
    e2e: float,
    *,
    span: str = "a1",
    parent: str | None = None,
    trace: str = "t1",
    at: float = 0,
    ttft: float | None = None,
    outcome: str = "ok",
    source: str = "observed",
    attributes: dict[str, Any] | None = None,
    **phases: float,
) -> SpanRecord:
    """A request span of one side whose summary adds up."""
    assert set(phases) <= PHASES
    facts: dict[str, Any] = {
        semconv.SIDE: which,
        semconv.OUTCOME: outcome,
        semconv.E2E_US: us(e2e),
        semconv.UNACCOUNTED_US: us(e2e) - sum(us(each) for each in phases.values()),
        semconv.SOURCES: ";".join(f"{name}={source}" for name in phases),
    }
    facts |= {semconv.phase_us(name): us(each) for name, each in phases.items()}
    if ttft is not None:
        facts[semconv.TTFT_US] = us(ttft)
    start_ns = START_NS + us(at) * 1000
    facts |= attributes or {}
    return SpanRecord(trace, span, parent, "chat tiny", start_ns, start_ns + us(e2e) * 1000,
                      attributes=facts)  # fmt: skip


def us(ms: float) -> int:
    """Whole microseconds."""
    return round(ms * 1000)


def plain(span: str, parent: str | None, trace: str = "t1") -> SpanRecord:
    """A span that is not a request."""
    return SpanRecord(trace, span, parent, "POST /v1/chat/completions", START_NS, START_NS + 1000)


def only(*spans: SpanRecord) -> Request:
    """The one request in *spans*, which must be sound."""
    found = requests_of(spans)
    assert (len(found.requests), found.invalid, found.incomplete) == (1, 0, 0)
    return found.requests[0]


def ledger(request: Request) -> dict[str, float]:
    """What its time went to, without what is nothing."""
    return {name: each.us / 1000 for name, each in request.durations.items() if each.us}


CLIENT: dict[str, Any] = {"ttft": 400, "first_token": 400, "decode": 590, "delivery": 10}
"""Of a client that waits a second."""
SERVER: dict[str, Any] = {
    "ttft": 340, "preprocess": 20, "queue": 200, "prefill": 120, "first_token": 10, "decode": 580,
    "delivery": 10,
}  # fmt: skip
"""Of the server behind it: 940 ms."""


def pair(trace: str = "t1", *, scale: float = 1.0, **attributes: Any) -> list[SpanRecord]:
    """A client and its server, whose clock is a minute ahead."""
    client = {name: each * scale for name, each in CLIENT.items()}
    server = {name: each * scale for name, each in SERVER.items()}
    return [
        side("client", 1000 * scale, trace=trace, attributes=attributes, **client),
        plain("b1", "a1", trace),
        side("server", 940 * scale, span="b2", parent="b1", trace=trace, at=60_000, **server),
    ]
