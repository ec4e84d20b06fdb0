"""Which marks of the evidence can be believed, in whole microseconds.

RECEIVED and FINISHED bound the request. Between them the heaviest subset of marks that keeps
their legal order is believed (what we observed weighs most); a mark that misses its place by at
most a millisecond is moved there and called estimated, anything else is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_llm.clock import is_instant
from otel_llm.timeline.evidence import Stamp
from otel_llm.timeline.marks import Mark, Source

TOLERANCE_US = 1_000
ORDER = (Mark.SENT, Mark.QUEUED, Mark.SCHEDULED, Mark.FIRST_TOKEN, Mark.LAST_TOKEN)
_WEIGHT = {Source.OBSERVED: 4, Source.REPORTED: 3, Source.DERIVED: 2, Source.ESTIMATED: 1}


_NONE: frozenset[Mark] = frozenset()


class At(NamedTuple):
    """A believed instant: whole microseconds since the Unix epoch."""

    us: int
    source: Source


class Window(NamedTuple):
    """The request's bounds and the marks between them, in legal order."""

    start: At
    end: At
    marks: Mapping[Mark, At]
    left_out: frozenset[Mark]
    first_delivered: At | None = None
    arrival_known: bool = True
    end_known: bool = True


def window_of(marks: Mapping[Mark, Stamp]) -> Window | None:
    """The believed marks, or None when not one usable instant is there."""
    usable = {
        mark: At((at_ns + 500) // 1000, source)
        for mark, (at_ns, source) in marks.items()
        if is_instant(at_ns)
    }
    if not usable:
        return None
    start, end = _bounds(usable)
    given = {mark: usable[mark] for mark in ORDER if mark in usable}
    sound = _is_sound(given, start, end)
    believed = given if sound else _believable(given, start, end)
    delivered = usable.get(Mark.FIRST_DELIVERED)
    return Window(
        start=start,
        end=end,
        marks=believed,
        left_out=_NONE if sound else frozenset(given).difference(believed),
        first_delivered=delivered and _within(delivered, start.us, end.us),
        arrival_known=Mark.RECEIVED in usable,
        end_known=Mark.FINISHED in usable,
    )


def _is_sound(given: Mapping[Mark, At], start: At, end: At) -> bool:
    """True when every mark lies in the request and after the one before it."""
    before = start.us
    for at in given.values():
        if at.us < before:
            return False
        before = at.us
    return before <= end.us


def _believable(given: Mapping[Mark, At], start: At, end: At) -> dict[Mark, At]:
    inside = {
        mark: moved
        for mark, at in given.items()
        if (moved := _within(at, start.us, end.us)) is not None
    }
    return _with_neighbours(inside, _in_order(inside), start, end)


def _bounds(usable: Mapping[Mark, At]) -> tuple[At, At]:
    start = usable.get(Mark.RECEIVED) or min(usable.values(), key=_us)
    end = usable.get(Mark.FINISHED) or max(usable.values(), key=_us)
    return start, end if end.us >= start.us else start


def _us(at: At) -> int:
    return at.us


def _within(at: At, low: int, high: int) -> At | None:
    """*at*, or moved to the nearest bound when it misses by no more than the tolerance."""
    if low <= at.us <= high:
        return at
    nearest = low if at.us < low else high
    return At(nearest, Source.ESTIMATED) if abs(at.us - nearest) <= TOLERANCE_US else None


def _in_order(inside: Mapping[Mark, At]) -> list[Mark]:
    """The heaviest subset of marks whose instants do not decrease."""
    best: list[tuple[int, list[Mark]]] = [(0, [])]
    for mark in ORDER:
        if mark not in inside:
            continue
        at = inside[mark]
        weight, chain = max(
            (each for each in best if not each[1] or inside[each[1][-1]].us <= at.us),
            key=lambda each: each[0],
        )
        best.append((weight + _WEIGHT[at.source], [*chain, mark]))
    return max(best, key=lambda each: each[0])[1]


def _with_neighbours(
    inside: Mapping[Mark, At], kept: list[Mark], start: At, end: At
) -> dict[Mark, At]:
    """The kept marks, and those others that fit between their neighbours when moved a little."""
    fixed = {Mark.RECEIVED: start, Mark.FINISHED: end} | {mark: inside[mark] for mark in kept}
    for mark in ORDER:
        if mark in inside and mark not in fixed:
            below = max(at.us for other, at in fixed.items() if other.value < mark.value)
            above = min(at.us for other, at in fixed.items() if other.value > mark.value)
            if (at := _within(inside[mark], below, above)) is not None:
                fixed[mark] = At(at.us, Source.ESTIMATED)
    return {mark: fixed[mark] for mark in ORDER if mark in fixed}
