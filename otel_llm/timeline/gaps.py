"""Gaps between outputs (server) or chunks (client): exact while short, a sketch when long.

The hot path appends one monotonic reading per output to `OutputTimes.stamps` and nothing else.
When the list is full it is folded into logarithmic buckets, so that memory does not grow with
the length of a stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from operator import sub
from typing import NamedTuple

STALL_FLOOR_NS = 200_000_000
STALL_FACTOR = 10
FOLD_AT = 2048


class GapSummary(NamedTuple):
    """Distribution of the gaps of one stream, whole microseconds.

    `p50_us`, `p99_us` and `max_us` are None below two outputs. Percentiles are by nearest rank;
    beyond 2048 outputs they carry a relative error of at most 1 %. A stall is a gap longer than
    200 ms and than ten median gaps.
    """

    outputs: int
    p50_us: int | None = None
    p99_us: int | None = None
    max_us: int | None = None
    stalls: int | None = None
    stall_us: int | None = None


class OutputTimes:
    """Collects the times of a stream's outputs, monotonic nanoseconds.

    Append to `stamps` (one clock read, one append), and call `fold` when it reaches `FOLD_AT`.
    """

    __slots__ = ("_buckets", "_first", "_folded", "_max", "stamps")

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self._buckets: dict[int, list[int]] = {}
        self._folded = 0
        self._max = 0
        self._first: int | None = None

    @property
    def first_ns(self) -> int | None:
        """When the first output came, or None before it."""
        if self._first is not None:
            return self._first
        return self.stamps[0] if self.stamps else None

    @property
    def outputs(self) -> int:
        """How many outputs have come."""
        return self._folded + len(self.stamps)

    def add(self, at_ns: int) -> None:
        """One more output; where every nanosecond counts, append and fold by hand."""
        self.stamps.append(at_ns)
        if len(self.stamps) >= FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Move all but the latest stamp into the buckets."""
        stamps = self.stamps
        if len(stamps) < 2:
            return
        if self._first is None:
            self._first = stamps[0]
        gaps = _differences(stamps)
        buckets = self._buckets
        for gap in gaps:
            bucket = buckets.get(index := _bucket(gap))
            if bucket is None:
                buckets[index] = [1, gap]
            else:
                bucket[0] += 1
                bucket[1] += gap
        self._max = max(self._max, *gaps)
        self._folded += len(stamps) - 1
        del stamps[:-1]

    def gaps_ns(self) -> list[int]:
        """The gaps that were not folded yet."""
        return _differences(self.stamps)

    @property
    def folded(self) -> bool:
        """True once gaps lie in the buckets."""
        return bool(self._buckets)

    def absorb(self, other: OutputTimes) -> None:
        """Add another stream's gaps to the buckets; its stamps are folded on the way."""
        other.fold()
        for index, (count, total) in other._buckets.items():
            bucket = self._buckets.setdefault(index, [0, 0])
            bucket[0] += count
            bucket[1] += total
        self._max = max(self._max, other._max)
        self._folded += other.outputs

    def sketched(self) -> GapSummary:
        """The distribution of what lies in the buckets."""
        rows = [(total // count, count, total) for count, total in self._buckets.values()]
        rows.sort()
        typical = _ranked(rows, 0.5)
        long = [row for row in rows if row[0] > _stall_limit(typical)]
        return GapSummary(
            outputs=self.outputs,
            p50_us=to_us(typical),
            p99_us=to_us(_ranked(rows, 0.99)),
            max_us=to_us(self._max),
            stalls=sum(count for _, count, _ in long),
            stall_us=to_us(sum(total for _, _, total in long)),
        )


def summarised(lanes: Sequence[OutputTimes]) -> GapSummary | None:
    """The distribution over all *lanes*, one per sequence; None when nothing came.

    Gaps are taken inside each lane: two sequences' outputs of one step are no gap.
    """
    if len(lanes) == 1 and not lanes[0].folded:
        only = lanes[0]
        return exact_summary(only.gaps_ns(), only.outputs) if only.outputs else None
    outputs = sum(lane.outputs for lane in lanes)
    if outputs == 0:
        return None
    if not any(lane.folded for lane in lanes):
        return exact_summary([gap for lane in lanes for gap in lane.gaps_ns()], outputs)
    total = OutputTimes()
    for lane in lanes:
        total.absorb(lane)
    return total.sketched()


def exact_summary(gaps_ns: list[int], outputs: int) -> GapSummary:
    """Distribution of *gaps_ns*, each at least 0, of a stream of *outputs* outputs."""
    if not gaps_ns:
        return GapSummary(outputs=outputs)
    ordered = sorted(gaps_ns)
    typical = _nearest_rank(ordered, 0.5)
    stalls = ordered[bisect_right(ordered, _stall_limit(typical)) :]
    return GapSummary(
        outputs=outputs,
        p50_us=to_us(typical),
        p99_us=to_us(_nearest_rank(ordered, 0.99)),
        max_us=to_us(ordered[-1]),
        stalls=len(stalls),
        stall_us=to_us(sum(stalls)),
    )


def to_us(nanoseconds: int) -> int:
    """Nanoseconds to whole microseconds, rounded half up."""
    return (nanoseconds + 500) // 1000


def _bucket(gap_ns: int) -> int:
    """The bucket of a gap: 128 to each doubling, so that none is wider than 1 %.

    Gaps beyond the stall floor have buckets of their own (negative), so that none holds both
    kinds.
    """
    shift = gap_ns.bit_length() - 8
    index = gap_ns if shift <= 0 else (shift << 8) + (gap_ns >> shift)
    return index if gap_ns <= STALL_FLOOR_NS else -index


def _stall_limit(median_ns: float) -> float:
    """A gap longer than this is a stall, nanoseconds."""
    return max(STALL_FLOOR_NS, STALL_FACTOR * median_ns)


def _differences(stamps: list[int]) -> list[int]:
    gaps = list(map(sub, stamps[1:], stamps))
    return gaps if not gaps or min(gaps) >= 0 else [max(0, gap) for gap in gaps]


def _nearest_rank(ordered: list[int], quantile: float) -> int:
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)]


def _ranked(rows: list[tuple[int, int, int]], quantile: float) -> int:
    rank = max(1, ceil(quantile * sum(count for _, count, _ in rows)))
    for value, count, _ in rows:
        rank -= count
        if rank <= 0:
            return value
    return rows[-1][0]
