"""A client's chunks: which arrivals are known, and what is said of the gaps between them."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.timeline.chunks import BLOCK, SAMPLE, ChunkTimes

START = 4_000.0


def collected(reads: list[tuple[float, float]], *, each: int = BLOCK) -> ChunkTimes:
    """Times of a stream; of each read, how long it waited and how long its reader was away."""
    times = ChunkTimes(START)
    now = START
    for waited, away in reads:
        now += waited
        times.got.append(now)
        now += away
        times.asked.append(now)
        if len(times.got) >= each:
            times.fold()
    times.fold()
    return times


def plain(reads: list[tuple[float, float]]) -> tuple[int, list[float]]:
    """The same, one read at a time: how many were buffered, and the gaps that are known."""
    buffered, gaps = 0, []
    now, before, known = START, None, None
    asked = now
    for waited, away in reads:
        now += waited
        if before is not None and asked - before > 1e-3 and now - asked < 5e-4:
            buffered, known = buffered + 1, None
        else:
            if known is not None:
                gaps.append(now - known)
            known = now
        before = now
        now += away
        asked = now
    return buffered, gaps


class TestArrival:
    """Which chunks came at a known time."""

    def test_a_quick_reader_knows_them_all(self) -> None:
        """Also those that were there at once: nobody was away."""
        times = collected([(0.03, 0.0), (0.0, 0.0), (0.03, 0.0)])
        assert (times.arrived, times.buffered) == (3, 0)

    def test_a_slow_reader_finds_them_waiting(self) -> None:
        """Chunks that were there when it came back may have come at any time before."""
        times = collected([(0.03, 0.1), (0.0001, 0.1), (0.0001, 0.1)])
        assert (times.arrived, times.buffered) == (1, 2)

    def test_a_slow_reader_that_has_to_wait(self) -> None:
        """It came back in time: the read waited for the chunk."""
        times = collected([(0.03, 0.01), (0.02, 0.01), (0.02, 0.01)])
        assert times.buffered == 0
        assert times.summary().p50_us == 30_000

    def test_no_gap_touches_a_buffered_chunk(self) -> None:
        """Neither the gap before it nor the one after it is known."""
        times = collected([(0.03, 0.0), (0.03, 0.1), (0.0, 0.0), (0.05, 0.0), (0.03, 0.0)])
        assert [round(gap, 6) for gap in times.gaps] == [0.03, 0.03]

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0001, 0.01, 0.3]), st.sampled_from([0.0, 0.0002, 0.1])
            ),
            max_size=200,
        ),
        st.integers(1, BLOCK),
    )
    def test_blocks_make_no_difference(self, reads: list[tuple[float, float]], each: int) -> None:
        """Folded now or later, the same chunks are known; bursts only lose single gaps."""
        buffered, gaps = plain(reads)
        times = collected(reads, each=each)
        assert times.buffered == buffered
        assert times.chunks == len(reads)
        assert len(times.gaps) == len(gaps)
        assert sum(times.gaps) == pytest.approx(sum(gaps), abs=1e-6)
        if gaps:
            assert times.summary().max_us == pytest.approx(max(gaps) * 1e6, abs=1_000)


class TestHeld:
    """How long the consumer kept the chunks."""

    def test_adds_up(self) -> None:
        """The time between two reads, whichever way the blocks fall."""
        times = collected([(0.03, 0.01)] * 200)
        assert times.held == pytest.approx(2.0)

    def test_the_last_chunk_of_a_stream_that_was_left(self) -> None:
        """Nobody came back for another one."""
        times = ChunkTimes(START)
        times.got += [START + 1, START + 2]
        times.asked += [START + 1.5]
        times.fold()
        assert times.held == pytest.approx(0.5)


class TestSummary:
    """The gaps of a stream."""

    def test_of_nothing(self) -> None:
        """No chunk, no gap, no number."""
        summary = ChunkTimes(START).summary()
        assert (summary.outputs, summary.p50_us, summary.stalls) == (0, None, None)

    def test_of_one_chunk(self) -> None:
        """One chunk has no gap."""
        assert collected([(0.5, 0.0)]).summary().p50_us is None

    def test_a_stall_is_longer_than_the_rest(self) -> None:
        """Over 200 ms, and over ten usual gaps."""
        summary = collected([(0.03, 0.0)] * 20 + [(0.35, 0.0)] + [(0.03, 0.0)] * 20).summary()
        assert (summary.stalls, summary.stall_us, summary.max_us) == (1, 350_000, 350_000)

    def test_a_slow_stream_does_not_stall(self) -> None:
        """Gaps of half a second are its usual ones, however many they are."""
        summary = collected([(0.5, 0.0)] * 1_000).summary()
        assert (summary.stalls, summary.p50_us) == (0, 500_000)

    def test_every_stall_of_a_long_stream_counts(self) -> None:
        """More than are kept one by one."""
        summary = collected(([(0.01, 0.0)] * 9 + [(0.4, 0.0)]) * 400).summary()
        assert summary.stalls == 400
        assert summary.stall_us == pytest.approx(400 * 400_000, rel=1e-3)

    def test_a_long_stream_is_thinned_fairly(self) -> None:
        """Two tokens at a time, and none of the two gaps is lost for it."""
        reads = [(0.002, 0.0), (0.050, 0.0)] * 20_000
        times = collected(reads)
        assert len(times.gaps) <= SAMPLE + BLOCK
        short = sum(gap < 0.01 for gap in times.gaps) / len(times.gaps)
        assert 0.4 < short < 0.6
        assert times.summary().p99_us == 50_000

    def test_bursts_keep_their_share_of_a_long_stream(self) -> None:
        """Half of the chunks come in bursts, each of which is shorter than the sample's step."""
        reads = [*[(0.05, 0.0)] * BLOCK, *[(0.00001, 0.0)] * BLOCK] * 2_000
        times = collected(reads)
        short = sum(gap < 0.01 for gap in times.gaps) / len(times.gaps)
        assert 0.35 < short < 0.65

    def test_a_short_stream_is_exact(self) -> None:
        """Percentiles by nearest rank over all gaps."""
        waits = [0.001 * (1 + i % 50) for i in range(SAMPLE)]
        summary = collected([(each, 0.0) for each in waits]).summary()
        known = sorted(waits[1:])
        assert summary.p50_us == pytest.approx(statistics.median_low(known) * 1e6, abs=1)

    def test_a_burst_counts_with_its_mean(self) -> None:
        """Chunks that come within a millisecond are not looked at one by one."""
        times = collected([(0.00001, 0.0)] * BLOCK)
        assert len(times.gaps) == BLOCK - 1
        assert all(a == b for a, b in pairwise(times.gaps))
