"""Traces as nobody should store them: trees of request spans, with faults of every kind."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from otel_llm import semconv
from otel_llm.analysis import SpanRecord
from otel_llm.timeline import Outcome, Part, Phase, Side
from tests.analysis.builders import START_NS

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**62, 2**64, 2**200, 1.0, -0.0, 1e308, float("nan"), float("inf"), "", "7",
    "ok", "\x1b[31m", "\ud800", "雪", b"\xff", [1], (), {"a": 1}, object(),
)  # fmt: skip
COUNTS = (
    *(semconv.part(each.value) for each in Part),
    semconv.CONSUMER_STALL_US, semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.STALLS,
    semconv.STALL_US, semconv.NET_DNS_US, semconv.NET_RTT_US, semconv.NET_RETRANSMITS,
    semconv.ATTEMPTS, semconv.PREEMPTIONS, semconv.CACHE_READ_TOKENS,
    semconv.REPLICA_WHEN_QUEUED.running, semconv.REPLICA_WHEN_QUEUED.kv_cache_percent,
)  # fmt: skip
TEXTS = (semconv.REQUEST_MODEL, semconv.HTTP_ROUTE, semconv.PROVIDER, semconv.ENGINE_NAME)


def traces() -> st.SearchStrategy[list[SpanRecord]]:
    """Lists of spans of two traces; the chance that a fact is odd runs from none to a third."""
    return st.builds(
        trace_of, st.integers(0, 2**32), st.integers(0, 9), st.sampled_from([0, 0.01, 0.05, 0.3])
    )


def trace_of(seed: int, count: int, odd: float) -> list[SpanRecord]:
    random = Random(seed)
    found = [_span(random, n, odd) for n in range(count)]
    random.shuffle(found)
    return found


def _span(random: Random, number: int, odd: float) -> SpanRecord:
    start, length = START_NS + random.randrange(10**10), random.randrange(10**10)
    if random.random() < odd:
        start, length = random.choice([(0, 5), (start, -5), (2**63, 2**63), (-1, 0)])
    parent = f"s{number - random.choice([1, 1, 1, 2, 3])}" if random.random() < 0.8 else None
    if random.random() < odd:
        parent = random.choice([f"s{number}", f"s{number + 1}", "gone", ""])
    return SpanRecord(
        trace_id="t2" if random.random() < 0.1 else "t1",
        span_id=f"s{number if random.random() >= odd else number - 1}",
        parent_span_id=parent,
        name="x",
        start_ns=start,
        end_ns=start + length,
        attributes={} if random.random() < 0.1 else _facts(random, odd),
    )


def _facts(random: Random, odd: float) -> dict[str, Any]:
    phases = {each: random.choice([0, 1, random.randrange(10**6)]) for each in Phase}
    phases = {each: us for each, us in phases.items() if random.random() < 0.6}
    total = sum(phases.values())
    e2e = total + random.choice([0, random.randrange(10**6)])
    facts: dict[str, Any] = {semconv.phase_us(each): us for each, us in phases.items()}
    facts |= {each: random.randrange(10**6) for each in COUNTS if random.random() < 0.5}
    facts |= {each: random.choice("abc") for each in TEXTS if random.random() < 0.7}
    facts |= {
        semconv.SIDE: str(random.choice([Side.CLIENT, Side.PROXY, Side.SERVER, Side.ENGINE])),
        semconv.OUTCOME: str(random.choice([Outcome.OK] * 9 + list(Outcome))),
        semconv.E2E_US: e2e,
        semconv.TTFT_US: random.randrange(e2e + 1) if random.random() < 0.8 else None,
        semconv.ROLE: random.choice([None, None, "prefill", "decode"]),
        semconv.ADJUSTED_COUNT: random.choice([None, 1.0, 20.0, 2.0**56]),
        semconv.SOURCES: random.choice(["queue=estimated;x", "decode=reported;queue=observed"]),
    }
    return {key: random.choice(ODD) if random.random() < odd else each
            for key, each in facts.items()}  # fmt: skip
