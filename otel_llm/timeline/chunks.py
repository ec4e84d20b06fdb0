"""The chunks a client reads: when they arrived, and how long their consumer kept them.

A chunk that was there before anybody asked for it says nothing of when it arrived. It counts as
buffered if its consumer had been away for more than a millisecond and the read returned at once;
gaps are taken between chunks whose arrival is known.

The hot path is two clock reads and two appends per chunk; everything else happens once in
`BLOCK` chunks. Readings are seconds of the monotonic clock as floats, whose differences are far
cheaper than those of integers; a double holds a century of uptime to the microsecond.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from itertools import compress
from math import ceil
from operator import sub
from random import Random

from otel_llm.timeline.gaps import STALL_FACTOR, STALL_FLOOR_NS, GapSummary

BLOCK = 16
"""Chunks between two foldings; a stream holds the readings of at most so many."""
SAMPLE = 160
"""Gaps of which percentiles are made: all of a stream up to so many, then a share of them."""
AWAY_S = 1e-3
"""A consumer that comes back sooner cannot have missed an arrival by more than this."""
AT_ONCE_S = 1e-3
"""A read that takes no longer did not wait; parsing with cold caches takes half of it."""
BURST_S = 1e-3
"""Chunks of a block that came within this time count as kept by nobody, and with the mean gap of
all such blocks in a row."""
LATEST = 4
"""So many of the last times of arrival are always known."""
_STALL_FLOOR_S = STALL_FLOOR_NS / 1e9
_MOST_LONG_GAPS = 256
_TOSSES = 1_021
_MOST_HALVINGS = 4
_PRIME = 40_503
_GOLDEN = 2_654_435_769
"""Its multiples are spread evenly over 32 bits."""
_HALF = bytes(number & 1 for number in range(256))


class ChunkTimes:
    """Collects the readings of one stream.

    For every chunk append to `got` when it came and, before the next one is asked for, to
    `asked` when its consumer came back; call `fold` when `got` holds `BLOCK` readings and at the
    end. `asked_at` is when the first chunk was asked for.
    """

    __slots__ = (
        "_burst",
        "_burst_s",
        "_gaps",
        "_known",
        "_long",
        "_longest",
        "_stall_s",
        "_stalls",
        "_thinned",
        "asked",
        "asked_at",
        "buffered",
        "chunks",
        "first",
        "got",
        "held",
        "last",
        "latest",
    )

    def __init__(self, asked_at: float) -> None:
        self.got: list[float] = []
        self.asked: list[float] = []
        self.asked_at = asked_at
        self.chunks = 0
        self.buffered = 0
        self.held = 0.0
        self.first: float | None = None
        self.last: float | None = None
        self.latest: Sequence[float] = ()
        self._gaps = array("f")
        self._known: float | None = None
        self._burst = 0
        self._burst_s = 0.0
        self._longest = 0.0
        self._long: list[float] | None = None
        self._stalls = 0
        self._stall_s = 0.0
        self._thinned = 0

    def fold(self) -> None:
        """Take over what was read since the last time."""
        got, asked = self.got, self.asked
        if not got:
            return
        since, end, gaps = self.last, got[-1], len(got)
        self.chunks += gaps
        if since is None:
            since = self.first = self._known = got[0]
            gaps -= 1
        if end - since < BURST_S and self._known is not None:
            self._burst += gaps
            self._burst_s += end - since
            self._known = end
            if len(asked) == len(got):
                self.held += asked[-1] - end
        else:
            self._take(since, gaps)
        self.last = end
        self.latest = got[-LATEST:] if len(got) >= LATEST else [*self.latest, *got][-LATEST:]
        if asked:
            self.asked_at = asked[-1]
        got.clear()
        asked.clear()

    def _take(self, since: float, gaps: int) -> None:
        """Chunks that took their time."""
        if self._burst:
            self._settle()
        got, asked = self.got, self.asked
        held = sum(asked) - sum(got if len(got) == len(asked) else got[: len(asked)])
        self.held += held
        before = 0.0 if self.last is None else self.asked_at - since
        if held + before > AWAY_S or self._known is None:
            skipped = len(got) - gaps
            self._take_each(since, got[skipped:], [self.asked_at, *asked][skipped:])
            self._known = None if self._known is None else got[-1]
        else:
            self._known = got[-1]
            if gaps:
                since_each = [since, *got] if gaps == len(got) else got
                self._add(list(map(sub, got[-gaps:], since_each)))

    def _settle(self) -> None:
        """Take over the bursts since the last time: nobody was away, and hardly any time passed."""
        gaps, mean = self._burst, self._burst_s / self._burst
        self._burst, self._burst_s = 0, 0.0
        self._longest = max(self._longest, mean)
        while len(self._gaps) + (gaps >> self._thinned) > SAMPLE:
            self._thin()
        self._gaps.extend(array("f", (mean,)) * self._share(gaps))

    def _take_each(self, before: float, got: list[float], asked: list[float]) -> None:
        """Look at every read: its consumer may have been away when the chunk came."""
        gaps = []
        for at, ask in zip(got, asked, strict=False):
            if ask - before > AWAY_S and at - ask < AT_ONCE_S:
                self.buffered += 1
                self._known = None
            else:
                if self._known is not None:
                    gaps.append(at - self._known)
                self._known = at
            before = at
        if gaps:
            self._add(gaps)

    def _add(self, gaps: list[float]) -> None:
        longest = max(gaps)
        self._longest = max(self._longest, longest)
        if longest > _STALL_FLOOR_S:
            self._add_long([gap for gap in gaps if gap > _STALL_FLOOR_S])
        if self._thinned:
            gaps = self._some(gaps, self._thinned)
        self._gaps.fromlist(gaps)
        if len(self._gaps) > SAMPLE:
            self._thin()

    def _thin(self) -> None:
        """Leave half of the sample away."""
        self._gaps = array("f", self._some(self._gaps, 1))
        self._thinned += 1

    def _share(self, gaps: int) -> int:
        """How many of some gaps go into the sample; a rest below one has its chance, too."""
        part = (self.chunks * _GOLDEN & 0xFFFF_FFFF) >> (32 - self._thinned)
        return (gaps + part) >> self._thinned

    def _some(self, gaps: Sequence[float], halvings: int) -> list[float]:
        if halvings > _MOST_HALVINGS:  # at most one
            place = (self.chunks * _GOLDEN >> 16) % len(gaps)
            return [gaps[place]] if self._share(len(gaps)) else []
        toss = self.chunks * _PRIME % _TOSSES
        return list(compress(gaps, _kept(halvings)[toss : toss + len(gaps)]))

    def _add_long(self, long: list[float]) -> None:
        """Gaps that may be stalls; when there are many, those that are get counted by now."""
        self._long = [*(self._long or ()), *long]
        if len(self._long) > _MOST_LONG_GAPS:
            self._count_stalls(sorted(self.gaps))

    def _count_stalls(self, ordered: list[float]) -> None:
        limit = max(_STALL_FLOOR_S, STALL_FACTOR * _rank(ordered, 0.5))
        stalls = [gap for gap in self._long or () if gap > limit]
        self._stalls += len(stalls)
        self._stall_s += sum(stalls)
        self._long = None

    @property
    def gaps(self) -> array[float]:
        """A sample of the gaps, seconds: all of them as long as they are few."""
        if self._burst:
            self._settle()
        return self._gaps

    @property
    def arrived(self) -> int:
        """How many chunks came at a known time."""
        return self.chunks - self.buffered

    def summary(self) -> GapSummary:
        """The distribution of the gaps between chunks that came at a known time."""
        ordered = sorted(self.gaps)
        if not ordered:
            return GapSummary(self.arrived)
        self._count_stalls(ordered)
        return GapSummary(
            outputs=self.arrived,
            p50_us=_us(_rank(ordered, 0.5)),
            p99_us=_us(_rank(ordered, 0.99)),
            max_us=_us(self._longest),
            stalls=self._stalls,
            stall_us=_us(self._stall_s),
        )


@functools.cache
def _kept(halvings: int) -> bytes:
    """Which gaps are kept when there are too many: each with the chance of so many halvings.

    In no rhythm that a server's own (two tokens at a time, say) could keep.
    """
    size = _TOSSES + SAMPLE + BLOCK
    half = Random(halvings).randbytes(size).translate(_HALF)  # noqa: S311 - no secret
    if halvings == 1:
        return half
    return (int.from_bytes(half) & int.from_bytes(_kept(halvings - 1))).to_bytes(size)


def _rank(ordered: list[float], quantile: float) -> float:
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)]


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def nanoseconds(seconds: float) -> int:
    """A reading of the monotonic clock as the integer that the rest of the timeline uses."""
    return round(seconds * 1e9)
