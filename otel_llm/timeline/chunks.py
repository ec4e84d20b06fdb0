"""The chunks a client reads: when they arrived, and how long their consumer kept them.

A chunk that was there before anybody asked for it says nothing of when it arrived. It counts as
buffered if its consumer had been away for more than a millisecond and the read returned at once;
gaps are taken between chunks whose arrival is known.

The hot path is two clock reads and two appends per chunk; everything else happens once in
`BLOCK` chunks. Readings are seconds of the monotonic clock as floats, whose differences are far
cheaper than those of integers; a double holds a century of uptime to the microsecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from math import ceil
from operator import sub
from random import Random

from otel_llm.timeline.gaps import STALL_FACTOR, STALL_FLOOR_NS, GapSummary

BLOCK = 32
"""Chunks between two foldings; a stream holds the readings of at most so many."""
SAMPLE = 256
"""Gaps of which percentiles are made: all of a stream up to so many, then a share of them."""
AWAY_S = 1e-3
"""A consumer that comes back sooner cannot have missed an arrival by more than this."""
AT_ONCE_S = 1e-3
"""A read that takes no longer did not wait; parsing with cold caches takes half of it."""
BURST_S = 1e-3
"""Chunks of a block that came within this time count with their mean gap, and as kept by nobody."""
_STALL_FLOOR_S = STALL_FLOOR_NS / 1e9
_MOST_LONG_GAPS = 256
# Which gaps are kept when there are too many: each with the chance of a half, in no rhythm that
# a server's own (two tokens at a time, say) could keep.
_TOSSES = 4_093
_KEPT = bytes(Random(7).choices((0, 1), k=2 * _TOSSES))  # noqa: S311 - no secret is made of it


class ChunkTimes:
    """Collects the readings of one stream.

    For every chunk append to `got` when it came and, before the next one is asked for, to
    `asked` when its consumer came back; call `fold` when `got` holds `BLOCK` readings and at the
    end. `asked_at` is when the first chunk was asked for.
    """

    __slots__ = (
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
        "gaps",
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
        self.latest: tuple[float, ...] = ()
        self.gaps = array("f")
        self._known: float | None = None
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
        since, gaps = self.last, len(got)
        if since is None:
            since, gaps = got[0], gaps - 1
            self.first = self._known = since
        if got[-1] - since < BURST_S and self._known is not None:
            held = asked[-1] - got[-1] if len(asked) == len(got) else 0.0
            self._take_burst(got[-1] - since, gaps)
        else:
            held = sum(asked) - sum(got if len(got) == len(asked) else got[: len(asked)])
            self._take(since, got[len(got) - gaps :], held)
        self._known = None if self._known is None else got[-1]
        self.held += held
        self.chunks += len(got)
        self.last = got[-1]
        self.latest = tuple(got[-4:]) if len(got) >= 4 else (*self.latest, *got)[-4:]
        if asked:
            self.asked_at = asked[-1]
        got.clear()
        asked.clear()

    def _take(self, since: float, got: list[float], held: float) -> None:
        """Chunks that took their time; *held* is how long they were kept together."""
        before = 0.0 if self.last is None else self.asked_at - since
        if held + before > AWAY_S or self._known is None:
            skipped = len(self.got) - len(got)
            self._take_each(since, got, [self.asked_at, *self.asked][skipped:])
        else:
            self._add(list(map(sub, got, [since, *got])))

    def _take_burst(self, took: float, gaps: int) -> None:
        """Nobody was away, and hardly any time has passed."""
        if gaps:
            mean = took / gaps
            self._longest = max(self._longest, mean)
            self._keep(array("f", (mean,)) * (gaps >> self._thinned))

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
        for round_ in range(self._thinned):
            gaps = self._half(gaps, round_)
        self._keep(array("f", gaps))

    def _keep(self, gaps: array[float]) -> None:
        self.gaps.extend(gaps)
        if len(self.gaps) > SAMPLE:
            self.gaps = array("f", self._half(self.gaps, self._thinned))
            self._thinned += 1

    def _half(self, gaps: Sequence[float], round_: int) -> list[float]:
        toss = (self.chunks * 31 + round_ * 1_009) % _TOSSES
        return list(compress(gaps, _KEPT[toss : toss + len(gaps)]))

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


def _rank(ordered: list[float], quantile: float) -> float:
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)]


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def nanoseconds(seconds: float) -> int:
    """A reading of the monotonic clock as the integer that the rest of the timeline uses."""
    return round(seconds * 1e9)
