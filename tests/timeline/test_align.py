"""Engine stamps: which happened, from which clock, and what may be done with them."""

from __future__ import annotations

import pytest

from otel_llm.clock import YEAR_2000_NS, YEAR_2200_NS, Anchor, is_instant
from otel_llm.timeline import EngineClock, EngineStamps, Mark, Part, Phase, Source, Stamp, resolve
from otel_llm.timeline.align import aligned, from_events, happened, milestones
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
            queued=epoch(10),
            first_token=epoch(410),
            handed_over_ns=MONOTONIC_NS + ns(5),
            last_seen_ns=MONOTONIC_NS + ns(910),
        )
        assert near(engine(queued=10, first_token=410), dict(aligned(given, ANCHOR).marks))

    def test_need_no_readings_of_ours(self) -> None:
        """Where we took none, the engine's word stands."""
        given = STAMPS._replace(handed_over_ns=None, last_seen_ns=None)
        assert near(MARKS, dict(aligned(given, ANCHOR).marks))

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


class TestEvents:
    """An engine's list of events: milestones and time spent preempted."""

    RUN = (("queued", 1.0), ("scheduled", 1.5), ("first_token", 2.0), ("finished", 5.0))

    def test_the_first_of_each_kind_counts(self) -> None:
        """A second schedule does not move the end of the queue."""
        found, _ = from_events([*self.RUN[:2], ("scheduled", 1.8), *self.RUN[2:]])
        expected = (1.0, 1.5, 2.0)
        assert expected == (found.queued, found.scheduled, found.first_token)

    @pytest.mark.parametrize(
        ("events", "last"),
        [
            ((), 2.0),
            ((("token", 2.5), ("token", 3.0)), 3.0),
            ((("token", 2.5), ("finished", 3.5)), 3.5),
            ((("finished", 0.0), ("token", 3.0)), 3.0),
        ],
    )
    def test_the_last_token(self, events: tuple[tuple[str, float], ...], last: float) -> None:
        """It is the finish, else the latest token, else the first."""
        found, _ = from_events([*self.RUN[:3], *events])
        assert last == milestones(found)[Mark.LAST_TOKEN]

    def test_no_events(self) -> None:
        """An engine that tells nothing gives nothing."""
        found, parts = from_events([])
        assert not milestones(found)
        assert not parts

    @pytest.mark.parametrize("never", [0.0, -1.0, float("nan"), float("inf")])
    def test_events_that_never_were(self, never: float) -> None:
        """A time that is none makes no event, not even a preemption."""
        found, parts = from_events([*self.RUN, ("preempted", never), ("scheduled", 6.0)])
        assert ns(0) == found.preemptions
        assert not parts

    @pytest.mark.parametrize(
        ("out", "back", "part"),
        [(1.6, 1.9, Part.PREFILL_PREEMPTED_US), (2.1, 2.4, Part.DECODE_PREEMPTED_US)],
    )
    def test_preempted_time_belongs_to_the_open_phase(
        self, out: float, back: float, part: Part
    ) -> None:
        """Before the first token it lies in prefill, after it in decode."""
        events = sorted(
            [*self.RUN, ("preempted", out), ("scheduled", back)], key=lambda each: each[1]
        )
        found, parts = from_events(events)
        assert {part: us(300)} == parts
        assert len(parts) == found.preemptions

    def test_preempted_times_are_summed(self) -> None:
        """Each preemption counts, and the time from each to the next schedule."""
        more = [("preempted", 2.1), ("scheduled", 2.3), ("preempted", 3.0), ("scheduled", 3.5)]
        found, parts = from_events([*self.RUN[:3], *more, self.RUN[3]])
        assert {Part.DECODE_PREEMPTED_US: us(700)} == parts
        assert len(more) // 2 == found.preemptions

    def test_a_finish_ends_a_preemption(self) -> None:
        """A request that ends while it is preempted was so until its end."""
        _, parts = from_events([*self.RUN[:3], ("preempted", 4.0), ("finished", 5.0)])
        assert {Part.DECODE_PREEMPTED_US: us(1000)} == parts

    def test_a_preemption_that_goes_back_takes_no_time(self) -> None:
        """A schedule stamped before the preemption gives nothing negative."""
        _, parts = from_events([*self.RUN[:3], ("preempted", 4.0), ("scheduled", 3.0)])
        assert not parts

    def test_no_preemption_is_known(self) -> None:
        """An engine that tells events and no preemption had none."""
        found, _ = from_events(self.RUN)
        assert ns(0) == found.preemptions

    def test_the_source_of_placed_events_is_reported(self) -> None:
        """Milestones from events are the engine's word like any other."""
        found, _ = from_events([("queued", here(10))])
        assert Source.REPORTED is aligned(found, ANCHOR).marks[Mark.QUEUED].source
