"""How far two hosts' clocks can be apart: by hand, and over true offsets of every size."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm import semconv
from otel_llm.analysis import SpanRecord, analyse, as_object, requests_of
from otel_llm.analysis.clocks import ClockOffset
from tests.analysis.builders import CLIENT, SERVER, only, pair, side, us


def offset(*spans: SpanRecord) -> ClockOffset:
    """The bounds on the one clock behind a network."""
    (found,) = only(*spans).offsets
    return found


def near(wanted: float) -> object:
    """Milliseconds, but for the microsecond that rounding may take."""
    return pytest.approx(us(wanted), abs=1)


def behind(at: float, **more: object) -> SpanRecord:
    """The usual server, whose span begins at *at* by its own clock."""
    return replace(side("server", 940, span="b2", parent="a1", at=at, **SERVER), **more)  # type: ignore[arg-type]


def test_the_envelope_of_request_and_reply_bounds_the_offset() -> None:
    """Received 20 ms after it was sent, first token handed on at 370 and read at 400.

    So the server's clock is ahead by 20 ms at most, and behind by 30 at most.
    """
    found = offset(side("client", 1000, **CLIENT), behind(20))
    assert (found.low_us, found.high_us) == (near(-30), near(20))
    assert not found.skewed


def test_the_end_of_the_reply_bounds_it_too() -> None:
    """The first token came late, so that the last one says more: made at 950, all read at 1000."""
    client = side("client", 1000, ttft=700, first_token=700, decode=290, delivery=10)
    found = offset(client, behind(20))
    assert (found.low_us, found.high_us) == (near(-50), near(20))


def test_a_clock_that_is_ahead_is_flagged() -> None:
    """By its clock the server, a minute ahead, did everything after the client had ended."""
    request = only(*pair())
    (found,) = request.offsets
    assert (found.low_us, found.high_us) == (near(60_000 - 50), near(60_000))
    assert request.skewed


def test_a_clock_that_is_behind_is_flagged() -> None:
    """It received what had not been sent."""
    found = offset(side("client", 1000, **CLIENT), behind(-5))
    assert (found.low_us, found.high_us) == (near(-55), near(-5))
    assert found.skewed


def test_a_flag_moves_nothing() -> None:
    """Spans, segments and lanes are those of the same request with clocks that agree."""
    client = side("client", 1000, **CLIENT)
    right, wrong = only(client, behind(20)), only(client, behind(-5))
    assert (right.skewed, wrong.skewed) == (False, True)
    assert (right.segments, right.lanes) == (wrong.segments, wrong.lanes)
    assert wrong.sides[1].span.start_ns == behind(-5).start_ns


def test_a_server_that_is_busy_after_its_reply_is_no_skew() -> None:
    """Its window ends 20 ms after the client's; its last token had been made long before."""
    late = {**SERVER, "delivery": 90}
    found = offset(
        side("client", 1000, **CLIENT), side("server", 1020, span="b2", parent="a1", **late)
    )
    assert not found.skewed


def test_the_reading_of_a_chunk_before_its_sender_looks_is_no_skew() -> None:
    """Half a millisecond is within what two processes on one host may do."""
    assert not offset(side("client", 1000, **CLIENT), behind(50.5)).skewed
    assert offset(side("client", 1000, **CLIENT), behind(52)).skewed


def test_a_reader_that_left_says_nothing_of_the_end() -> None:
    """The server went on for a while; only the first token bounds its clock."""
    client = side("client", 500, ttft=400, first_token=400, decode=100, outcome="abandoned")
    found = offset(client, behind(20))
    assert (found.low_us, found.high_us) == (near(-30), near(20))


def test_a_reply_that_never_came_gives_one_bound() -> None:
    """It was received no earlier than it was sent; more is not known."""
    client = side("client", 500, outcome="cancelled")
    found = offset(client, side("server", 490, span="b2", parent="a1", at=3, outcome="cancelled"))
    assert (found.low_us, found.high_us) == (None, near(3))


def test_clocks_that_no_offset_explains_give_none() -> None:
    """The server says that it took longer than the client waited."""
    client = side("client", 300, ttft=100, first_token=100, decode=200)
    assert only(client, behind(20)).offsets == ()


def test_time_before_the_answered_attempt_does_not_count() -> None:
    """The attempt was sent after 500 ms of retries."""
    client = side("client", 1500, retry=500, **CLIENT)
    found = offset(client, behind(520))
    assert (found.low_us, found.high_us) == (near(-30), near(20))


def test_each_hop_has_bounds_of_its_own() -> None:
    """A proxy right beside the client, and a server an hour ahead of it."""
    found = only(
        side("client", 1000, **CLIENT),
        side("proxy", 970, span="p1", parent="a1", at=10, ttft=370, decode=590),
        side("server", 940, span="b2", parent="p1", at=3_600_000, **SERVER),
    ).offsets
    assert [(each.inner.side.value, each.skewed) for each in found] == [
        ("proxy", False),
        ("server", True),
    ]


def test_an_engine_in_its_server_has_the_servers_clock() -> None:
    """No network lies between them, so that there is nothing to bound."""
    request = only(
        side("server", 940, **SERVER),
        side("engine", 900, span="e1", parent="a1", at=5_000, queue=200, prefill=120, decode=580),
    )
    assert request.offsets == ()


def test_the_report_tells_who_is_skewed() -> None:
    """How many in all and per group, and the bounds of each of the slowest."""
    spans = [
        *pair("t1", **{semconv.REQUEST_MODEL: "tiny"}),
        side("client", 900, trace="t2", **{**CLIENT, "decode": 490}),
    ]
    report = as_object(analyse(requests_of(spans)))
    assert (report["skewed"], report["groups"]["model"]["tiny"]["skewed"]) == (1, 1)
    first, second = report["slowest"]
    assert first["clocks"] == [
        {
            "side": "server",
            "span_id": "b2",
            "offset_us": [near(60_000 - 50), near(60_000)],
            "skewed": True,
        }
    ]
    assert second["clocks"] == []


@given(
    seed=st.integers(0, 2**32),
    offset_ns=st.integers(-(10**13), 10**13),
    slow=st.sampled_from([1, 1_000, 10**6, 10**9]),
)
@settings(max_examples=500, deadline=None)
def test_the_bounds_always_hold_the_true_offset(seed: int, offset_ns: int, slow: int) -> None:
    """Whatever the ways, the reader and the clocks: instants are drawn, then both sides' spans."""
    random = Random(seed)

    def after(at: int) -> int:
        return at + random.randrange(slow + 1)

    sent = 1_764_460_800_000_000_000 + random.randrange(10**9)
    received = after(sent)
    token = after(received)
    handed_on = after(token)
    last = after(handed_on)
    finished = after(last)
    read = after(handed_on)
    ended = after(max(read, last))
    client = _span("client", 0, sent, read, read, ended, ended)
    server = _span("server", offset_ns, received, token, handed_on, last, finished)
    found = offset(client, replace(server, span_id="b2", parent_span_id="a1"))
    assert found.low_us is not None
    assert found.low_us * 1000 <= offset_ns <= found.high_us * 1000


def _span(which: str, ahead: int, *instants: int) -> SpanRecord:
    """A side's span by a clock that is *ahead*.

    The instants are its start, first token, first token handed on, last token and end; the summary
    is made of them in whole microseconds.
    """
    start, token, handed_on, last, end = ((each + ahead + 500) // 1000 for each in instants)
    facts = {
        semconv.SIDE: which,
        semconv.OUTCOME: "ok",
        semconv.E2E_US: end - start,
        semconv.TTFT_US: token - start,
        semconv.phase_us("first_token"): handed_on - token,
        semconv.phase_us("delivery"): end - last,
    }
    first, *_, final = (each + ahead for each in instants)
    return SpanRecord("t1", "a1", None, "x", first, final, attributes=facts)
