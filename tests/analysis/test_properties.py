"""What holds of every analysis, whatever the spans."""

from __future__ import annotations

import json
from collections import Counter
from io import StringIO
from itertools import pairwise
from math import isclose
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rich.console import Console

from otel_llm.analysis import SpanRecord, analyse, as_json, requests_of, sentence
from otel_llm.analysis.render import render
from otel_llm.analysis.report import schema
from otel_llm.analysis.segments import Segment, placed, total
from otel_llm.timeline import Phase, Source
from tests.analysis.hostile import trace_of, traces

MANY = settings(max_examples=200, deadline=None)


@given(traces())
@MANY
def test_the_time_of_every_request_adds_up(spans: list[SpanRecord]) -> None:
    """Phases, network and unaccounted are E2E as integers, and none is negative."""
    for request in requests_of(spans).requests:
        assert request.e2e_us == sum(each.us for each in request.segments)
        assert request.e2e_us == sum(each.us for each in request.durations.values())
        assert all(type(each.us) is int and each.us >= 0 for each in request.segments)


@given(traces())
@MANY
def test_inner_sides_lie_within_the_request(spans: list[SpanRecord]) -> None:
    """Sides of which each has room in the one outside it begin and end within the request."""
    for request in requests_of(spans).requests:
        rooms = [each.e2e_us - each.us(Phase.RETRY) for each in request.sides]
        lengths = [each.e2e_us for each in request.sides[1:]]
        if all(length <= room for length, room in zip(lengths, rooms, strict=False)):
            for lane in request.lanes:
                assert lane.start_us >= 0
                assert lane.start_us + total(lane.segments) <= request.e2e_us


@given(traces())
@MANY
def test_no_span_is_in_two_requests(spans: list[SpanRecord]) -> None:
    """Whatever the tree, time is never added twice."""
    found = requests_of(spans)
    sides = [side.span for each in found.requests for side in each.sides]
    assert len(sides) == len({id(each) for each in sides})
    assert len(found.requests) + found.invalid + found.incomplete <= len(spans)


@given(traces(), st.randoms())
@MANY
def test_the_order_of_spans_means_nothing(spans: list[SpanRecord], random: Random) -> None:
    """Sound traces give the same requests however they are stored."""
    if len({each.span_id for each in spans}) == len(spans):
        shuffled = random.sample(spans, len(spans))
        wanted, found = requests_of(spans), requests_of(shuffled)
        assert wanted[1:] == found[1:]
        told = [Counter(each.segments for each in one.requests) for one in (wanted, found)]
        assert told[0] == told[1]


@given(traces())
@MANY
def test_any_spans_give_a_report_that_keeps_its_schema(spans: list[SpanRecord]) -> None:
    """The report is JSON without NaN, keeps the schema, and its shares add up to 1."""
    report = json.loads(as_json(analyse(requests_of(spans))))
    Draft202012Validator(schema()).validate(report)
    assert report["requests"] == sum(report["outcomes"].values())
    shares = [each["share"] for each in report["phases"].values()]
    assert None in shares or isclose(1, sum(shares))
    for slow in report["slowest"]:
        ends = [each["start_us"] + each["duration_us"] for each in slow["phases"]]
        assert [each["start_us"] for each in slow["phases"]] == [0, *ends][: len(ends)]


@given(traces(), st.integers(40, 200), st.sampled_from(["utf-8", "ascii", "latin-1"]))
@MANY
def test_any_spans_can_be_told_and_shown(spans: list[SpanRecord], width: int, code: str) -> None:
    """The sentence is one, and no line on the page is wider than the terminal or obeyed by it."""
    analysis = analyse(requests_of(spans))
    told = sentence(analysis)
    assert told.endswith(".")
    assert "nan" not in told
    out = _Encoded(code)
    render(analysis, Console(file=out, width=width))
    assert all(len(line) <= width for line in out.getvalue().splitlines())
    assert "\x1b" not in out.getvalue()


class _Encoded(StringIO):
    """A text file in some encoding that refuses what the encoding cannot hold."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def write(self, text: str) -> int:
        text.encode(self._encoding)
        return super().write(text)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_segments_follow_each_other(lengths: list[int]) -> None:
    """Placed segments begin where the one before ended."""
    found = list(placed(Segment(str(n % 2), us, None) for n, us in enumerate(lengths)))
    assert all(a.start_us + a.us == b.start_us for a, b in pairwise(found))
    assert sum(lengths) == sum(each.us for each in found)


def test_what_is_known_differently_stays_apart() -> None:
    """An estimate beside an observation of the same phase is not made one."""
    parts = [Segment("queue", 1, Source.OBSERVED), Segment("queue", 2, Source.ESTIMATED)]
    assert [(each.start_us, each.us) for each in placed(parts)] == [(0, 1), (1, 2)]


def test_the_traces_drawn_are_worth_drawing() -> None:
    """Many are sound, have several sides, networks, hops and both kinds of fault."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        found = requests_of(trace_of(seed, 9, 0.01))
        seen["invalid"] += found.invalid
        seen["incomplete"] += found.incomplete
        for each in found.requests:
            seen["sound"] += 1
            seen["deep"] += len(each.sides) > 2
            seen["network"] += "network" in each.durations
            seen["hops"] += each.hops > 0
            seen["shared"] += len({lane.start_us for lane in each.lanes}) < len(each.lanes)
    assert min(seen.values()) >= 30, seen
    assert len(seen) == 7
