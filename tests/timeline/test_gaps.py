"""Gaps between outputs: exact while few, folded into a sketch when many."""

from __future__ import annotations

import random
from math import ceil
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.timeline import GapSummary, OutputTimes
from otel_llm.timeline.gaps import FOLD_AT, summarised
from tests.timeline.builders import MONOTONIC_NS, ns, outputs, us

BUCKET = 0.01
"""Relative width of a bucket of the sketch."""


def stream(gaps_ms: list[float]) -> OutputTimes:
    """Outputs with these gaps between them."""
    return from_ns([ns(gap) for gap in gaps_ms])


def from_ns(gaps_ns: list[int], fold_at: int | None = None) -> OutputTimes:
    """Outputs with these gaps, folded as a caller folds them."""
    found = OutputTimes()
    found.stamps.append(MONOTONIC_NS)
    at = MONOTONIC_NS
    for gap in gaps_ns:
        at += gap
        found.stamps.append(at)
        if fold_at and len(found.stamps) >= fold_at:
            found.fold()
    return found


def summed(*lanes: OutputTimes) -> GapSummary:
    """The distribution over these streams, which is known."""
    found = summarised(lanes)
    assert found is not None
    return found


class TestExact:
    """Streams that were never folded."""

    def test_nothing_came(self) -> None:
        """A stream without outputs has no summary."""
        assert summarised([OutputTimes()]) is None
        assert summarised([]) is None

    def test_one_output_has_no_gap(self) -> None:
        """Below two outputs everything but their number is unknown, not zero."""
        assert GapSummary(outputs=1) == summed(outputs(5))

    def test_two_outputs_have_one(self) -> None:
        """The only gap is median, 99th percentile and maximum at once."""
        expected = GapSummary(
            outputs=2, p50_us=us(7), p99_us=us(7), max_us=us(7), stalls=0, stall_us=0
        )
        assert expected == summed(outputs(5, 12))

    @pytest.mark.parametrize(
        ("count", "p50", "p99"),
        [(2, 1, 2), (3, 2, 3), (4, 2, 4), (99, 50, 99), (100, 50, 99), (101, 51, 100)],
    )
    def test_percentiles_are_by_nearest_rank(self, count: int, p50: int, p99: int) -> None:
        """A percentile is a gap that was there, never a value between two."""
        gaps = [float(each) for each in range(1, count + 1)]
        random.Random(7).shuffle(gaps)
        found = summed(stream(gaps))
        expected = (us(p50), us(p99), us(count))
        assert expected == (found.p50_us, found.p99_us, found.max_us)

    def test_outputs_of_one_instant_have_a_gap_of_zero(self) -> None:
        """Two outputs in one clock tick are zero apart, which is known."""
        expected = GapSummary(outputs=2, p50_us=0, p99_us=0, max_us=0, stalls=0, stall_us=0)
        assert expected == summed(stream([0]))

    def test_a_clock_that_went_back_gives_zero(self) -> None:
        """No gap is ever negative."""
        found = summed(outputs(10, 5, 8))
        expected = (us(0), us(3))
        assert expected == (found.p50_us, found.max_us)

    def test_gaps_are_rounded_at_the_end(self) -> None:
        """Microseconds are rounded half up once, from nanoseconds."""
        found = summed(from_ns([1_499, 1_500]))
        expected = (1, 2)
        assert expected == (found.p50_us, found.max_us)

    def test_asking_changes_nothing(self) -> None:
        """A summary can be taken at any time and again."""
        seen = stream([1, 2, 3])
        assert summed(seen) == summed(seen)
        assert (4, ns(6)) == (seen.outputs, seen.stamps[-1] - seen.stamps[0])


class TestStalls:
    """Gaps over 200 ms and over ten times the median."""

    @pytest.mark.parametrize(
        ("longest", "stalls", "stall_ms"), [(200, 0, 0), (200.001, 1, 200.001), (900, 1, 900)]
    )
    def test_of_a_quick_stream_begin_at_200_ms(
        self, longest: float, stalls: int, stall_ms: float
    ) -> None:
        """While ten medians are less, the floor of 200 ms counts, and is no stall itself."""
        found = summed(stream([10, 10, longest, 10]))
        assert (stalls, us(stall_ms)) == (found.stalls, found.stall_us)

    @pytest.mark.parametrize(("longest_ns", "stalls"), [(200_000_000, 0), (200_000_001, 1)])
    def test_begin_after_exactly_200_ms(self, longest_ns: int, stalls: int) -> None:
        """The limit is one to the nanosecond."""
        assert stalls == summed(from_ns([10_000_000, longest_ns, 10_000_000])).stalls

    @pytest.mark.parametrize(
        ("longest", "stalls", "stall_ms"), [(201, 0, 0), (500, 0, 0), (500.001, 1, 500.001)]
    )
    def test_of_a_slow_stream_begin_at_ten_medians(
        self, longest: float, stalls: int, stall_ms: float
    ) -> None:
        """A stream of 50 ms per output stalls above half a second."""
        found = summed(stream([50, 50, longest, 50]))
        assert (stalls, us(stall_ms)) == (found.stalls, found.stall_us)

    @pytest.mark.parametrize(("longest", "stalls"), [(500, 0), (520, 1)])
    def test_of_a_folded_slow_stream_begin_at_ten_medians(
        self, longest: float, stalls: int
    ) -> None:
        """Exactly ten medians are no stall after folding either."""
        seen = stream([50] * 10 + [longest])
        seen.fold()
        assert stalls == summed(seen).stalls

    def test_are_counted_and_summed(self) -> None:
        """Each stall counts once, whole."""
        found = summed(stream([5, 300, 5, 5, 700, 5, 5]))
        assert (2, us(1000)) == (found.stalls, found.stall_us)

    @pytest.mark.parametrize(("longest", "stalls"), [(300, 0), (301, 1)])
    def test_the_median_of_an_even_number_is_the_lower_one(
        self, longest: float, stalls: int
    ) -> None:
        """The median is the p50 that is shown, here 30 ms, and no mean with the gap above."""
        assert stalls == summed(stream([20, 30, 60, longest])).stalls

    def test_of_two_gaps_can_be_told(self) -> None:
        """A stream that stalls in its second gap already stalls."""
        assert us(5000) == summed(stream([20, 5000])).stall_us

    @pytest.mark.parametrize("fold", [False, True])
    def test_survive_folding(self, fold: bool) -> None:
        """A stall far from the limit is found by both ways of counting."""
        seen = stream([10, 10, 900, 10, 10])
        if fold:
            seen.fold()
        found = summed(seen)
        assert (1, us(900)) == (found.stalls, found.stall_us)

    def test_a_folded_stream_of_slow_outputs_has_none(self) -> None:
        """Ten medians count after folding as well."""
        seen = stream([50, 50, 400, 50])
        seen.fold()
        found = summed(seen)
        assert found.stalls == found.stall_us == 0


class TestOutputTimes:
    """What is known of the outputs while they come."""

    def test_nothing_yet(self) -> None:
        """Before the first output its time is unknown."""
        seen = OutputTimes()
        assert seen.first_ns is None
        assert seen.outputs == 0

    @pytest.mark.parametrize("fold", [False, True])
    def test_ends_and_number(self, fold: bool) -> None:
        """First, last and number are the same before and after folding."""
        seen = outputs(1, 2, 4)
        if fold:
            seen.fold()
        expected = (MONOTONIC_NS + ns(1), MONOTONIC_NS + ns(4), 3)
        assert expected == (seen.first_ns, seen.stamps[-1], seen.outputs)

    @pytest.mark.parametrize("times", [(), (1,)])
    def test_folding_less_than_two_does_nothing(self, times: tuple[float, ...]) -> None:
        """Without a gap there is nothing to fold."""
        seen = outputs(*times)
        seen.fold()
        assert len(times) == len(seen.stamps) == seen.outputs

    def test_the_gap_across_a_fold_is_not_lost(self) -> None:
        """The stamp that is kept is where the next gap begins."""
        seen = outputs(0, 10)
        seen.fold()
        seen.stamps.append(MONOTONIC_NS + ns(310))
        found = summed(seen)
        assert (3, us(300), 1) == (found.outputs, found.max_us, found.stalls)

    def test_folding_twice_keeps_the_first(self) -> None:
        """The first output stays the first after any number of folds."""
        seen = outputs(1, 2)
        seen.fold()
        seen.stamps.append(MONOTONIC_NS + ns(3))
        seen.fold()
        assert MONOTONIC_NS + ns(1) == seen.first_ns


class TestLanes:
    """Several sequences of one request, each with outputs of its own."""

    def test_gaps_lie_inside_a_lane(self) -> None:
        """Outputs of two sequences made in one step are no gap."""
        found = summed(outputs(0, 100, 200), outputs(1, 101, 201))
        assert (6, us(100), us(100)) == (found.outputs, found.p50_us, found.max_us)

    def test_a_lane_without_outputs_adds_nothing(self) -> None:
        """A sequence that never gave anything changes no number."""
        assert summed(outputs(0, 100)) == summed(OutputTimes(), outputs(0, 100))

    def test_a_lane_of_one_output_adds_one(self) -> None:
        """It counts as an output and has no gap."""
        found = summed(outputs(0, 100), outputs(50))
        assert (3, us(100)) == (found.outputs, found.max_us)

    @pytest.mark.parametrize("folded", [(0,), (1,), (0, 1)])
    def test_folded_and_exact_lanes_are_added(self, folded: tuple[int, ...]) -> None:
        """It does not matter which of the lanes were folded."""
        lanes = [stream([10, 10, 10]), stream([10, 900])]
        for index in folded:
            lanes[index].fold()
        expected = GapSummary(7, us(10), us(900), us(900), 1, us(900))
        assert expected == summed(*lanes)

    def test_asking_twice_counts_once(self) -> None:
        """A summary of folded lanes can be taken again."""
        lanes = [from_ns([10_000_000] * 5000, FOLD_AT), stream([20, 20])]
        assert summed(*lanes) == summed(*lanes)
        assert sum(lane.outputs for lane in lanes) == summed(*lanes).outputs

    def test_a_lane_goes_on_after_asking(self) -> None:
        """The gap after a summary is neither lost nor doubled."""
        lane = from_ns([10_000_000] * 5000, FOLD_AT)
        summed(lane)
        lane.stamps.append(lane.stamps[-1] + ns(400))
        found = summed(lane)
        assert (5002, us(400), 1) == (found.outputs, found.max_us, found.stalls)


class TestSketch:
    """Streams that outgrew the list."""

    def test_memory_does_not_grow(self) -> None:
        """A hundred thousand outputs take no more memory than ten thousand."""
        rng = random.Random(3)
        gaps = [round(rng.lognormvariate(17, 0.5)) for _ in range(100_000)]
        short, long = from_ns(gaps[:10_000], FOLD_AT), from_ns(gaps, FOLD_AT)
        assert len(long.stamps) < FOLD_AT
        assert 2 * _size(short) > _size(long)

    def test_buckets_are_bounded_for_any_gaps(self) -> None:
        """Gaps from one nanosecond to a century fit into a few thousand buckets."""
        seen = from_ns([round(1.003**power) for power in range(14_500)], FOLD_AT)
        assert len(seen._buckets) < 8_200

    def test_counts_every_output(self) -> None:
        """Folding loses none and counts none twice."""
        for count in (FOLD_AT - 1, FOLD_AT, FOLD_AT + 1, 3 * FOLD_AT):
            assert count + 1 == from_ns([1_000_000] * count, FOLD_AT).outputs

    def test_the_maximum_is_exact(self) -> None:
        """The longest gap is kept as it was."""
        seen = from_ns([10_000_000] * 5000 + [123_456_789] + [10_000_000] * 5000, FOLD_AT)
        assert us(123.457) == summed(seen).max_us

    def test_equal_gaps_are_exact(self) -> None:
        """Of a stream that ticks evenly nothing is lost."""
        found = summed(from_ns([12_345_678] * 5000, FOLD_AT))
        expected = GapSummary(5001, 12_346, 12_346, 12_346, 0, 0)
        assert expected == found

    def test_gaps_of_zero_are_exact(self) -> None:
        """Outputs in one tick keep a gap of zero."""
        found = summed(from_ns([0] * 5000, FOLD_AT))
        assert GapSummary(5001, 0, 0, 0, 0, 0) == found

    @pytest.mark.parametrize("seed", range(6))
    def test_percentiles_of_usual_streams_are_within_one_percent(self, seed: int) -> None:
        """For gaps spread as engines spread them the sketch is as good as its promise."""
        rng = random.Random(seed)
        gaps = [round(rng.lognormvariate(17, 0.2 + 0.2 * seed)) for _ in range(20_000)]
        found = summed(from_ns(gaps, FOLD_AT))
        assert _ranked(gaps, 0.5) / 1000 == pytest.approx(found.p50_us, rel=0.01)
        assert _ranked(gaps, 0.99) / 1000 == pytest.approx(found.p99_us, rel=0.01)

    def test_the_edge_of_a_bucket_is_within_one_percent(self) -> None:
        """However gaps lie in a bucket, the percentile is as near as promised."""
        for high_ms in (400.5, 401, 402, 403, 404, 405, 406):
            gaps = [ns(high_ms if n % 100 >= 98 else 398.345) for n in range(3000)]
            found = summed(from_ns(gaps, FOLD_AT))
            assert us(high_ms) == pytest.approx(found.p99_us, rel=0.01)

    def test_stalls_near_the_floor_are_exact(self) -> None:
        """Gaps of 199.9 ms and of 200.1 ms never share a bucket."""
        seen = from_ns([ns(gap) for gap in [10, 10, 199.9, 10, 200.1] * 1000], FOLD_AT)
        assert (1000, us(200_100)) == (summed(seen).stalls, summed(seen).stall_us)

    def test_a_gap_of_exactly_the_floor_shares_no_bucket_with_stalls(self) -> None:
        """Gaps of 200 ms to the nanosecond are no stalls, however near a stall is."""
        seen = from_ns([10_000_000] * 3000 + [200_000_000, 200_000_001] * 1000, FOLD_AT)
        assert (1000, us(200_000.001)) == (summed(seen).stalls, summed(seen).stall_us)

    @given(
        st.lists(st.one_of(st.integers(0, 10**10), st.integers(0, 10**6)), min_size=1, max_size=60)
    )
    def test_agrees_with_the_exact_summary(self, gaps: list[int]) -> None:
        """For any gaps the sketch is within a bucket of the truth, and its counts are exact."""
        exact, sketch = summed(from_ns(gaps)), summed(from_ns(gaps, fold_at=2))
        assert (exact.outputs, exact.max_us) == (sketch.outputs, sketch.max_us)
        assert exact.p50_us == pytest.approx(sketch.p50_us, rel=BUCKET, abs=1)
        assert exact.p99_us == pytest.approx(sketch.p99_us, rel=BUCKET, abs=1)

    @given(st.lists(st.integers(1, 2 * 10**9), min_size=3, max_size=60))
    def test_finds_the_stalls_that_are_clear(self, gaps: list[int]) -> None:
        """Stalls agree with the exact count wherever no gap lies within 2 % of the limit."""
        limit = max(200_000_000, 10 * _ranked(gaps, 0.5))
        low, high = limit * (1 - 2 * BUCKET), limit * (1 + 2 * BUCKET)
        clear = [gap for gap in gaps if not low <= gap <= high]
        if len(clear) == len(gaps):
            exact, sketch = summed(from_ns(gaps)), summed(from_ns(gaps, fold_at=2))
            assert (exact.stalls, exact.stall_us) == (sketch.stalls, sketch.stall_us)


def _ranked(gaps: list[int], quantile: float) -> int:
    return sorted(gaps)[ceil(quantile * len(gaps)) - 1]


def _size(seen: OutputTimes) -> int:
    return getsizeof(seen.stamps) + getsizeof(seen._buckets) + 100 * len(seen._buckets)
