"""Marks that cannot all be believed."""

from __future__ import annotations

import pytest

from otel_llm.clock import YEAR_2000_NS
from otel_llm.timeline import (
    Evidence,
    Mark,
    Phase,
    Side,
    Source,
    Stamp,
    resolve,
)
from tests.timeline.builders import (
    BOUNDS,
    engine,
    laid,
    marks,
    phases,
    server,
    us,
)

OBSERVED, REPORTED = Source.OBSERVED, Source.REPORTED
DERIVED, ESTIMATED = Source.DERIVED, Source.ESTIMATED


class TestOddMarks:
    """Marks that are out of order, outside the request, or no instants."""

    def test_a_mark_out_of_order_is_left_out(self) -> None:
        """A schedule after the first token is not believed, and is named."""
        found = resolve(server(BOUNDS | engine(queued=10, scheduled=700) | marks(first_token=400)))
        assert frozenset({Mark.SCHEDULED}) == found.left_out
        assert found.duration_us(Phase.QUEUE) is None
        assert found.duration_us(Phase.PREFILL) is None

    def test_what_we_observed_outweighs_what_was_reported(self) -> None:
        """Of two marks that contradict each other the observed one stays."""
        found = resolve(server(BOUNDS | marks(scheduled=700) | engine(first_token=400)))
        assert frozenset({Mark.FIRST_TOKEN}) == found.left_out

    @pytest.mark.parametrize(
        ("better", "worse"),
        [(OBSERVED, REPORTED), (REPORTED, DERIVED), (DERIVED, ESTIMATED)],
    )
    def test_better_known_marks_stay(self, better: Source, worse: Source) -> None:
        """Observed beats reported beats derived beats estimated."""
        given = BOUNDS | marks(worse, queued=700) | marks(better, scheduled=400)
        assert frozenset({Mark.QUEUED}) == resolve(server(given)).left_out
        given = BOUNDS | marks(better, queued=700) | marks(worse, scheduled=400)
        assert frozenset({Mark.SCHEDULED}) == resolve(server(given)).left_out

    def test_the_set_that_weighs_most_stays(self) -> None:
        """One observed mark does not outweigh three reported ones that agree."""
        given = BOUNDS | engine(queued=10, scheduled=20, first_token=400) | marks(last_token=5)
        assert frozenset({Mark.LAST_TOKEN}) == resolve(server(given)).left_out

    def test_a_mark_after_two_that_contradict_follows_the_better_one(self) -> None:
        """The first token goes with the observed schedule, and the queue before it is lost."""
        given = BOUNDS | engine(queued=700) | marks(scheduled=400, first_token=800)
        found = resolve(server(given))
        assert frozenset({Mark.QUEUED}) == found.left_out
        assert phases("prefill 400+400 observed") == laid(found)

    @pytest.mark.parametrize("time_ms", [-50, 1050])
    def test_a_mark_outside_the_request_is_left_out(self, time_ms: float) -> None:
        """RECEIVED and FINISHED bound what is believed."""
        found = resolve(server(BOUNDS | marks(queued=time_ms)))
        assert frozenset({Mark.QUEUED}) == found.left_out
        assert phases() == laid(found)

    @pytest.mark.parametrize(
        ("queued_ms", "expected"), [(-1, "preprocess 0+0 estimated"), (0, "preprocess 0+0 derived")]
    )
    def test_a_mark_just_before_the_request_is_moved(self, queued_ms: float, expected: str) -> None:
        """A millisecond outside is clock noise: moved to the bound and called an estimate."""
        assert expected in laid(resolve(server(BOUNDS | engine(queued=queued_ms))))

    def test_a_mark_just_after_the_request_is_moved(self) -> None:
        """The same holds at the other end."""
        found = resolve(server(BOUNDS | engine(last_token=1001)))
        assert "delivery 1000+0 estimated" in laid(found)

    @pytest.mark.parametrize("queued_ms", [-1.001, 1001.001])
    def test_more_than_a_millisecond_is_too_much(self, queued_ms: float) -> None:
        """The tolerance is exactly one millisecond on both sides."""
        found = resolve(server(BOUNDS | engine(queued=queued_ms)))
        assert frozenset({Mark.QUEUED}) == found.left_out

    def test_a_mark_just_out_of_order_is_moved(self) -> None:
        """A first token half a millisecond before its schedule is moved to it."""
        given = BOUNDS | marks(scheduled=400) | engine(first_token=399.5)
        found = resolve(server(given))
        assert "prefill 400+0 estimated" in laid(found)
        assert frozenset() == found.left_out

    def test_a_mark_just_after_its_successor_is_moved_back(self) -> None:
        """A schedule half a millisecond after an observed first token is moved to it."""
        found = resolve(server(BOUNDS | engine(scheduled=400.5) | marks(first_token=400)))
        assert "prefill 400+0 estimated" in laid(found)
        assert us(400) == found.ttft_us

    def test_equal_marks_are_in_order(self) -> None:
        """Marks of one instant stay what they are when another one is left out."""
        given = BOUNDS | engine(queued=10, scheduled=10) | marks(first_token=5000)
        found = resolve(server(given))
        assert frozenset({Mark.FIRST_TOKEN}) == found.left_out
        assert "queue 10+0 reported" in laid(found)

    @pytest.mark.parametrize("odd_ns", [0, -1, 81_233_900_000_000, YEAR_2000_NS - 1, 2**70])
    def test_what_is_no_instant_is_not_there(self, odd_ns: int) -> None:
        """Zero, monotonic readings and other values that are no wall-clock time are ignored."""
        found = resolve(server(BOUNDS | {Mark.QUEUED: Stamp(odd_ns)}))
        assert phases() == laid(found)
        assert us(1000) == found.e2e_us

    def test_an_end_before_the_start_gives_no_time(self) -> None:
        """A request that ended before it began has no length, and no phase has one."""
        found = resolve(server(marks(received=0, queued=20, finished=-5)))
        assert us(0) == found.e2e_us
        assert frozenset({Mark.QUEUED}) == found.left_out

    def test_a_missing_end_leaves_the_length_unknown(self) -> None:
        """Without FINISHED phases are known, but neither E2E nor what they leave of it."""
        found = resolve(server(marks(received=0, first_token=400, last_token=800)))
        assert "decode 400+400 observed" in laid(found)
        assert found.e2e_us is found.unaccounted_us is None

    def test_no_marks_no_times(self) -> None:
        """Without a single instant every time is unknown, and nothing is zero."""
        found = resolve(Evidence(Side.SERVER))
        assert phases() == laid(found)
        times = (found.start_us, found.end_us, found.e2e_us, found.unaccounted_us, found.ttft_us)
        assert times == (None,) * 5
