"""Engine stamps: which happened, from which clock, and what may be done with them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from otel_llm.clock import YEAR_2000_NS, YEAR_2200_NS, Anchor, is_instant
from otel_llm.timeline import EngineClock, EngineStamps, Mark, Phase, Stamp, resolve
from otel_llm.timeline.align import aligned, happened, milestones
from tests.timeline.builders import (
    BASE_NS,
    MONOTONIC_NS,
    FakeClock,
    at,
    durations,
    engine,
    laid,
    marks,
    ns,
    server,
    us,
)

ANCHOR = Anchor(BASE_NS, MONOTONIC_NS)
NEVER = [None, 0, 0.0, -0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e12, 10**400]
NO_NUMBERS = [True, False, "", "1.0", b"1", [], 1j]


def here(milliseconds: float) -> float:
    """What this host's monotonic clock reads then, in seconds."""
    return MONOTONIC_NS / 1e9 + milliseconds / 1e3


def elsewhere(milliseconds: float) -> float:
    """What the monotonic clock of another host reads then, in seconds."""
    return 12.5 + milliseconds / 1e3


def epoch(milliseconds: float) -> float:
    """Seconds since the Unix epoch at that time."""
    return BASE_NS / 1e9 + milliseconds / 1e3


def near(expected: dict[Mark, Stamp], found: dict[Mark, Stamp]) -> bool:
    """Same marks and sources, and times equal up to the precision of seconds in a float."""
    return expected.keys() == found.keys() and all(
        abs(expected[mark].at_ns - found[mark].at_ns) < 500
        and expected[mark].source is found[mark].source
        for mark in expected
    )


STAMPS = EngineStamps(
    queued=here(10),
    scheduled=here(110),
    first_token=here(410),
    last_token=here(900),
    handed_over_ns=MONOTONIC_NS + ns(5),
    last_seen_ns=MONOTONIC_NS + ns(910),
)
MARKS = engine(queued=10, scheduled=110, first_token=410, last_token=900)
FOREIGN = STAMPS._replace(
    queued=elsewhere(10),
    scheduled=elsewhere(110),
    first_token=elsewhere(410),
    last_token=elsewhere(900),
)


class TestHappened:
    """Milestones that never were."""

    @pytest.mark.parametrize("stamp", [*NEVER, *NO_NUMBERS])
    def test_no_time(self, stamp: object) -> None:
        """None, zero, negative, infinite, not-a-number, absurd and mistyped mean never."""
        assert not happened(stamp)

    @pytest.mark.parametrize("stamp", [1e-9, 1, 81_234.1, 1764460800.1, 1e12 - 1])
    def test_a_time(self, stamp: float) -> None:
        """Any positive number of seconds is a time, whole or not."""
        assert happened(stamp)

    @pytest.mark.parametrize("never", NEVER)
    @pytest.mark.parametrize("mark", ["queued", "scheduled", "first_token"])
    def test_a_milestone_that_never_was_gives_no_mark(self, mark: str, never: float) -> None:
        """Whatever the engine keeps for never, there is no mark, and the others stay."""
        found = aligned(STAMPS._replace(**{mark: never}), ANCHOR)
        assert MARKS.keys() - {Mark[mark.upper()]} == found.marks.keys()

    @pytest.mark.parametrize("never", NEVER)
    def test_a_duration_needs_both_its_ends(self, never: float) -> None:
        """No subtraction is made with a milestone that never was."""
        found = aligned(FOREIGN._replace(scheduled=never), ANCHOR)
        assert {Phase.DECODE} == found.reported.keys()

    def test_no_milestone_at_all(self) -> None:
        """A sequence of which nothing is known is empty, not an error."""
        found = aligned(EngineStamps(), ANCHOR)
        assert not found.marks
        assert not found.reported


class TestLastToken:
    """An engine's `finished` stands for the last token if it gives no other."""

    @pytest.mark.parametrize("never", NEVER)
    def test_finished_stands_in(self, never: float) -> None:
        """Without a stamp of the last token the end of the engine's work is it."""
        given = STAMPS._replace(last_token=never, finished=here(950))
        assert here(950) == milestones(given)[Mark.LAST_TOKEN]

    def test_a_stamp_of_its_own_wins(self) -> None:
        """A last token that the engine gives is not replaced."""
        given = STAMPS._replace(finished=here(950))
        assert here(900) == milestones(given)[Mark.LAST_TOKEN]

    @pytest.mark.parametrize("never", NEVER)
    def test_finished_without_a_first_token_is_no_token(self, never: float) -> None:
        """A request aborted in the queue finished, and no token was the last."""
        given = STAMPS._replace(first_token=never, last_token=None, finished=here(950))
        assert Mark.LAST_TOKEN not in milestones(given)

    @pytest.mark.parametrize("never", NEVER)
    def test_finished_that_never_was_does_not_stand_in(self, never: float) -> None:
        """Two milestones that never were give no third."""
        given = STAMPS._replace(last_token=None, finished=never)
        assert Mark.LAST_TOKEN not in milestones(given)


class TestSameClock:
    """Stamps that fall between our own readings around the call."""

    def test_become_marks(self) -> None:
        """They are placed on the request's timeline, reported."""
        found = aligned(STAMPS, ANCHOR)
        assert near(MARKS, dict(found.marks))
        assert not found.reported

    def test_of_the_wall_clock_become_marks_too(self) -> None:
        """An engine of this host may read the wall clock instead."""
        given = EngineStamps(
            clock=EngineClock.EPOCH_S,
            queued=epoch(0),
            first_token=epoch(2000),
            handed_over_ns=MONOTONIC_NS,
            last_seen_ns=MONOTONIC_NS + ns(2000),
        )
        assert engine(queued=0, first_token=2000) == aligned(given, ANCHOR).marks

    def test_need_no_readings_of_ours(self) -> None:
        """Where we took none, the request's own arrival is the earliest."""
        given = STAMPS._replace(handed_over_ns=None, last_seen_ns=None)
        assert near(MARKS, dict(aligned(given, ANCHOR).marks))
        assert not aligned(given._replace(queued=here(-2)), ANCHOR).marks

    @pytest.mark.parametrize(("until_ms", "same"), [(899.1, True), (898.9, False)])
    def test_end_by_the_end_of_the_request(self, until_ms: float, same: bool) -> None:
        """Without a reading of ours the latest that a stamp can be is given."""
        given = STAMPS._replace(last_seen_ns=None)
        assert same is bool(aligned(given, ANCHOR, MONOTONIC_NS + ns(until_ms)).marks)

    def test_prefer_our_reading_to_the_end_of_the_request(self) -> None:
        """What was read around the sequence's life is nearer than the request's end."""
        until = MONOTONIC_NS + ns(5000)
        assert not aligned(STAMPS._replace(last_token=here(950)), ANCHOR, until).marks

    @pytest.mark.parametrize(
        ("low", "high", "same"),
        [(1, -1, True), (1.000001, -1, False), (1, -1.000001, False)],
    )
    def test_may_miss_by_exactly_a_millisecond(self, low: float, high: float, same: bool) -> None:
        """The tolerance is the same to the nanosecond on both sides."""
        given = EngineStamps(
            queued=5.0,
            first_token=7.0,
            handed_over_ns=ns(5000 + low),
            last_seen_ns=ns(7000 + high),
        )
        assert same is bool(aligned(given, Anchor(BASE_NS, ns(4000))).marks)

    def test_whatever_else_is_known_comes_along(self) -> None:
        """Counts and the finish reason belong to the sequence, placed or not."""
        more = {"output_tokens": 9, "preemptions": 1, "finish_reason": "stop"}
        for given in (STAMPS, FOREIGN):
            found = aligned(given._replace(**more), ANCHOR)
            expected = (9, 1, "stop")
            assert expected == (found.output_tokens, found.preemptions, found.finish_reason)

    @pytest.mark.parametrize(("early_ms", "same"), [(0.9, True), (1.1, False)])
    def test_may_begin_a_millisecond_before_our_reading(self, early_ms: float, same: bool) -> None:
        """We read our clock before or after the engine reads its own."""
        given = STAMPS._replace(handed_over_ns=MONOTONIC_NS + ns(10 + early_ms))
        assert same == bool(aligned(given, ANCHOR).marks)

    @pytest.mark.parametrize(("late_ms", "same"), [(0.9, True), (1.1, False)])
    def test_may_end_a_millisecond_after_our_reading(self, late_ms: float, same: bool) -> None:
        """The same holds at the other end."""
        given = STAMPS._replace(last_seen_ns=MONOTONIC_NS + ns(900 - late_ms))
        assert same == bool(aligned(given, ANCHOR).marks)


class TestForeignClock:
    """Stamps that were read elsewhere: only differences among themselves are used."""

    def test_give_durations_only(self) -> None:
        """No instant of another clock reaches the request's timeline."""
        found = aligned(FOREIGN, ANCHOR)
        assert not found.marks
        assert durations(queue=100, prefill=300, decode=490) == found.reported

    def test_one_stamp_that_does_not_fit_spoils_all(self) -> None:
        """If one was read from another clock, all were."""
        found = aligned(STAMPS._replace(last_token=here(2000)), ANCHOR)
        assert not found.marks
        assert {Phase.QUEUE, Phase.PREFILL, Phase.DECODE} == found.reported.keys()

    def test_of_another_wall_clock(self) -> None:
        """A node whose wall clock is three seconds ahead tells durations."""
        given = STAMPS._replace(
            clock=EngineClock.EPOCH_S,
            queued=epoch(3010),
            scheduled=epoch(3110),
            first_token=epoch(3410),
            last_token=epoch(3900),
        )
        found = aligned(given, ANCHOR)
        assert not found.marks
        assert us(100) == round(found.reported[Phase.QUEUE] / 1000)

    def test_of_a_small_monotonic_clock_taken_for_epoch(self) -> None:
        """Seconds since boot that claim to be since 1970 are no instants."""
        found = aligned(STAMPS._replace(clock=EngineClock.EPOCH_S), ANCHOR)
        assert not found.marks

    def test_are_subtracted_to_the_nanosecond(self) -> None:
        """A decode of a quarter of an hour has not lost a microsecond."""
        given = EngineStamps(first_token=1.0, last_token=1001.0, handed_over_ns=MONOTONIC_NS)
        assert durations(decode=1_000_000) == aligned(given, ANCHOR).reported

    def test_of_seconds_since_boot_are_no_instants(self) -> None:
        """An anchor that itself is none places nothing."""
        given = EngineStamps(queued=5.0, scheduled=6.0)
        found = aligned(given, Anchor(0, 0))
        assert not found.marks
        assert durations(queue=1000) == found.reported

    def test_that_go_back_give_no_duration(self) -> None:
        """An end before its start is not a duration, neither negative nor zero."""
        found = aligned(FOREIGN._replace(scheduled=elsewhere(5)), ANCHOR)
        assert {Phase.PREFILL, Phase.DECODE} == found.reported.keys()

    def test_of_equal_stamps_give_zero(self) -> None:
        """A wait of no length is known."""
        found = aligned(FOREIGN._replace(scheduled=elsewhere(10)), ANCHOR)
        assert ns(0) == found.reported[Phase.QUEUE]

    def test_reach_the_timeline_as_reported_durations(self) -> None:
        """Our own marks say where, the engine's clock only how long."""
        given = marks(received=0, first_token=420, last_token=915, finished=1000)
        found = resolve(server(given, sequences=(aligned(FOREIGN, ANCHOR),)))
        assert "queue 20+100 reported" in laid(found)
        assert "prefill 120+300 reported" in laid(found)
        assert "decode 420+490 reported" in laid(found)


class TestAnchor:
    """A monotonic reading becomes an instant through one pair of readings."""

    def test_places_a_reading(self) -> None:
        """An instant is as far from the anchor as its reading."""
        assert BASE_NS + ns(250) == ANCHOR.instant(MONOTONIC_NS + ns(250))
        assert BASE_NS - ns(250) == ANCHOR.instant(MONOTONIC_NS - ns(250))

    def test_gives_the_reading_back(self) -> None:
        """Both directions are exact, to the nanosecond."""
        reading = MONOTONIC_NS + 123_456_789
        assert reading == ANCHOR.monotonic(ANCHOR.instant(reading))

    @pytest.mark.parametrize(
        ("offset", "rounded"), [(0, 0), (499, 0), (500, 1000), (999, 1000), (1499, 1000)]
    )
    def test_is_taken_at_a_whole_microsecond(self, offset: int, rounded: int) -> None:
        """The start of a span and the integers computed from it agree."""
        found = Anchor.take(FakeClock(BASE_NS + offset, 7))
        assert Anchor(BASE_NS + rounded, 7) == found

    def test_is_not_moved_by_a_step_of_the_wall_clock(self) -> None:
        """An hour back during a request changes no duration."""
        clock = FakeClock()
        anchor = Anchor.take(clock)
        clock.advance(100)
        clock.step_wall(-3_600_000)
        clock.advance(100)
        assert at(200).at_ns == anchor.instant(clock.monotonic_ns())


class TestInstant:
    """What can be a wall-clock time at all."""

    @pytest.mark.parametrize(("year", "instant"), [(2000, YEAR_2000_NS), (2200, YEAR_2200_NS)])
    def test_is_bounded_by_the_years_as_named(self, year: int, instant: int) -> None:
        """The bounds are the first instants of these years, UTC."""
        assert int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9 == instant

    @pytest.mark.parametrize("value", [YEAR_2000_NS, BASE_NS, YEAR_2200_NS])
    def test_lies_between_2000_and_2200(self, value: int) -> None:
        """Both bounds are instants."""
        assert is_instant(value)

    @pytest.mark.parametrize(
        "value",
        [
            0,
            -1,
            True,
            None,
            MONOTONIC_NS,
            BASE_NS // 10**9,
            BASE_NS // 10**6,
            float(BASE_NS),
            YEAR_2000_NS - 1,
            YEAR_2200_NS + 1,
            2**63,
        ],
    )
    def test_is_nothing_else(self, value: object) -> None:
        """Monotonic readings, floats, seconds and milliseconds are none."""
        assert not is_instant(value)


class Reading(float):
    """A float of another library, as numpy has one."""


def test_a_time_in_a_kind_of_float() -> None:
    """A reading that numpy computed is a time like any other."""
    assert happened(Reading(81_234.5))
