"""Hypothesis strategies for arbitrary, hostile evidence."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from otel_llm.clock import Anchor
from otel_llm.timeline import (
    Ending,
    EngineClock,
    EngineStamps,
    Evidence,
    Mark,
    Outcome,
    OutputTimes,
    Part,
    Phase,
    Side,
    Source,
    Stamp,
    Tokens,
)
from otel_llm.timeline.align import aligned
from otel_llm.timeline.gaps import summarised

BASE_NS = 1_764_460_800_000_000_000
ANCHOR = Anchor(BASE_NS, 81_233_900_000_000)

odd_numbers = st.sampled_from([0, -1, 1, 2**62, 2**63, 2**70, -(2**70)])
instants = st.one_of(
    st.integers(BASE_NS, BASE_NS + 10**10),
    st.integers(BASE_NS - 10**12, BASE_NS + 10**12),
    odd_numbers,
)
stamps = st.builds(Stamp, instants, st.sampled_from(Source))
durations = st.one_of(st.integers(0, 10**10), odd_numbers, st.integers(-(10**12), 10**12))
counts: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.integers(0, 500), odd_numbers, st.floats(), st.booleans(), st.text(max_size=3)
)
seconds: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.just(0.0),
    st.floats(81_233, 81_245),
    st.floats(),
    st.integers(),
    st.text(max_size=2),
)
engine_stamps = st.builds(
    EngineStamps,
    clock=st.sampled_from(EngineClock),
    queued=seconds,
    scheduled=seconds,
    first_token=seconds,
    last_token=seconds,
    finished=seconds,
    handed_over_ns=st.one_of(st.none(), st.integers(81_233 * 10**9, 81_245 * 10**9)),
    last_seen_ns=st.one_of(st.none(), st.integers(81_233 * 10**9, 81_245 * 10**9)),
    output_tokens=counts,
    preemptions=counts,
    preempted=st.lists(st.tuples(seconds, seconds), max_size=4).map(tuple),
    finish_reason=st.sampled_from([None, "stop", "length", "abort", "error"]),
)

sequences = engine_stamps.map(lambda each: aligned(each, ANCHOR))


def _gaps(times: list[int]) -> Any:
    outputs = OutputTimes()
    outputs.stamps.extend(times)
    return summarised([outputs])


endings = st.builds(
    Ending,
    failure=st.sampled_from([None, *Outcome]),
    error_type=st.sampled_from([None, "ValueError"]),
    status=st.sampled_from([None, 200, 400, 429, 499, 500, 503]),
    peer_gone=st.booleans(),
    abandoned=st.booleans(),
    end_record=st.booleans(),
    terminator=st.booleans(),
)
evidences = st.builds(
    Evidence,
    side=st.sampled_from(Side),
    streaming=st.booleans(),
    generates=st.booleans(),
    marks=st.dictionaries(st.sampled_from(Mark), stamps),
    reported=st.dictionaries(st.sampled_from(Phase), durations),
    reported_total_ns=st.one_of(st.none(), durations),
    sequences=st.lists(engine_stamps.map(lambda each: aligned(each, ANCHOR)), max_size=4).map(
        tuple
    ),
    expected_sequences=st.integers(0, 5),
    tokens=st.builds(Tokens, counts, counts, counts, counts, counts),
    parts=st.dictionaries(st.sampled_from(Part), counts),
    gaps=st.lists(instants, max_size=20).map(_gaps),
    role=st.sampled_from([None, "prefill", "decode"]),
    attempts=st.integers(0, 3),
    consumer_stall_ns=counts,
    buffered_chunks=counts,
    finish_reasons=st.sampled_from([(), ("stop",), ("abort",), ("stop", "length")]),
    ending=endings,
)
