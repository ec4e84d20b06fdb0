"""Phases laid onto the believed marks: observed marks fix where, reported durations how long.

The marks cut the request into segments. A segment with one phase takes its length from the marks
or, if the engine stated one that fits, from the engine. In a segment with several phases only
those with a stated duration can be placed; they end where the segment ends. What does not fit is
cut, called estimated, and its raw value kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_llm.timeline.gaps import to_us
from otel_llm.timeline.marks import Mark, Phase, Source, combined
from otel_llm.timeline.window import TOLERANCE_US, At, Window

LONGEST_US = 366 * 86_400 * 1_000_000
"""No duration beyond a year is believed."""


class PhaseTime(NamedTuple):
    """One phase: start in microseconds since the epoch, length in whole microseconds.

    `reported_us` is what the engine said when that did not fit.
    """

    phase: Phase
    start_us: int
    duration_us: int
    source: Source
    reported_us: int | None = None

    @property
    def end_us(self) -> int:
        """Where the phase ends, microseconds since the epoch."""
        return self.start_us + self.duration_us


class Duration(NamedTuple):
    """A length stated by an engine, or bounded from what it stated.

    `said_us` is what the engine said where `us` is only a part of that.
    """

    us: int
    source: Source = Source.REPORTED
    said_us: int | None = None


class _Segment(NamedTuple):
    start: At
    end: At
    phases: tuple[Phase, ...]
    exact: bool
    """True when both marks of its one slot are known; False when marks between are missing."""
    starts_phases: bool
    """True when the first phase begins with the segment, and not after a network's way."""

    @property
    def length_us(self) -> int:
        return self.end.us - self.start.us


_WORK = frozenset({Phase.PREFILL, Phase.DECODE})


def usable_durations(reported: Mapping[Phase, int], total_ns: int | None) -> dict[Phase, Duration]:
    """Stated durations that can be true; the queue as the rest of *total_ns* if that is known.

    The rest is queue only where the engine's own work is stated too.
    """
    if not reported:
        return {}
    found = {phase: Duration(to_us(ns)) for phase, ns in reported.items() if _is_duration(ns)}
    works = not _WORK.isdisjoint(found)
    if total_ns is not None and _is_duration(total_ns) and works and Phase.QUEUE not in found:
        rest = to_us(total_ns) - sum(each.us for each in found.values())
        found[Phase.QUEUE] = Duration(max(0, rest), Source.ESTIMATED)
    return found


def lay_out(
    window: Window,
    durations: Mapping[Phase, Duration],
    *,
    delivery: bool,
    first_token: At | None,
    waits_unseen: bool,
    remote: bool,
    retried: bool = True,
) -> tuple[PhaseTime, ...]:
    """The phases of one request, in order and without overlap.

    *delivery* is False when the reply never came to its end; *first_token* is where the
    first-token phase of a streaming server ends; with *waits_unseen* (a streaming client that
    knows nothing of the engine) all the time to the first token is that phase. *remote* says
    that the engine is reached over a network, so that its phases begin later than we sent. A
    request that was sent later than it was asked for, and not *retried*, waited for its reader.
    """
    if durations:
        durations = _after_first_token(durations, window, first_token)
    ends: dict[Mark, At | None] = {**window.marks, Mark.FINISHED: window.end}
    ends[Mark.FIRST_DELIVERED] = first_token
    laid: list[PhaseTime] = []
    start, near = window.start, not remote
    slots, pending = 0, _NO_PHASES
    for mark, phases in _SLOTS:
        at = ends.get(mark)
        if at is None:
            if mark not in _NOTHING_HAPPENED:
                slots, pending = slots + 1, pending + phases
            continue
        happened = delivery if mark is Mark.FINISHED else retried or mark is not Mark.SENT
        slots, pending = slots + 1, pending + phases if happened else pending
        if waits_unseen and mark is Mark.FIRST_TOKEN:
            slots, pending = 1, (Phase.FIRST_TOKEN,)
        if durations:
            laid += _lay(_Segment(start, at, pending, slots == 1, near), durations)
        elif slots == 1 and pending:
            laid.append(_between(pending[-1], start, at))
        start, slots, pending = at, 0, _NO_PHASES
        near = near or mark is not Mark.SENT
    return tuple(laid)


_SLOTS = (
    (Mark.SENT, (Phase.RETRY,)),
    (Mark.QUEUED, (Phase.PREPROCESS,)),
    (Mark.SCHEDULED, (Phase.LOAD, Phase.QUEUE)),
    (Mark.FIRST_TOKEN, (Phase.PREFILL,)),
    (Mark.FIRST_DELIVERED, (Phase.FIRST_TOKEN,)),
    (Mark.LAST_TOKEN, (Phase.DECODE,)),
    (Mark.FINISHED, (Phase.DELIVERY,)),
)
"""Which phases end at which mark; where a mark is missing they reach to the next one."""
_NOTHING_HAPPENED = {Mark.SENT, Mark.FIRST_DELIVERED}
"""Without these marks their phase did not take place: no retry, no wait for the first delivery."""
_NO_PHASES: tuple[Phase, ...] = ()


def _after_first_token(
    durations: Mapping[Phase, Duration], window: Window, first_token: At | None
) -> Mapping[Phase, Duration]:
    """Engines state decode from FIRST_TOKEN; the phase begins where the first delivery ended."""
    decode, first = durations.get(Phase.DECODE), window.marks.get(Mark.FIRST_TOKEN)
    if decode is None or first is None or first_token is None:
        return durations
    rest = max(0, decode.us - (first_token.us - first.us))
    return {**durations, Phase.DECODE: Duration(rest, decode.source, decode.us)}


def _lay(segment: _Segment, durations: Mapping[Phase, Duration]) -> list[PhaseTime]:
    stated = {phase: durations[phase] for phase in segment.phases if phase in durations}
    bare = [phase for phase in segment.phases if phase not in stated and phase is not Phase.LOAD]
    if segment.exact and not stated:
        return [_between(bare[0], segment.start, segment.end)] if bare else []
    laid = _stated(segment, stated)
    if segment.exact and bare:
        start = laid[-1].end_us
        laid.append(PhaseTime(bare[0], start, segment.end.us - start, Source.DERIVED))
    return laid


def _between(phase: Phase, start: At, end: At) -> PhaseTime:
    return PhaseTime(phase, start.us, end.us - start.us, combined(start.source, end.source))


def _stated(segment: _Segment, stated: Mapping[Phase, Duration]) -> list[PhaseTime]:
    """Stated durations: those that begin with the segment at its start, the rest at its end."""
    lengths = _fitted(segment.length_us, stated)
    leading = _leading(segment, stated)
    at = segment.start.us
    laid = []
    for index, (phase, duration) in enumerate(stated.items()):
        if index == leading:
            at = segment.end.us - sum(list(lengths.values())[leading:])
        laid.append(_placed(phase, at, lengths[phase], duration))
        at += lengths[phase]
    return laid


def _leading(segment: _Segment, stated: Mapping[Phase, Duration]) -> int:
    """How many stated phases begin right at the segment's first mark."""
    if not segment.starts_phases:
        return 0
    count = 0
    for phase in segment.phases:
        if phase in stated:
            count += 1
        elif phase is not Phase.LOAD:
            break
    return count


def _placed(phase: Phase, start_us: int, length_us: int, duration: Duration) -> PhaseTime:
    """A stated phase; one that had to be cut is an estimate and keeps what the engine said."""
    misfit = duration.us - length_us > TOLERANCE_US
    said = misfit and duration.source is Source.REPORTED
    return PhaseTime(
        phase,
        start_us,
        length_us,
        Source.ESTIMATED if misfit else duration.source,
        (duration.said_us or duration.us) if said else None,
    )


def _fitted(room_us: int, stated: Mapping[Phase, Duration]) -> dict[Phase, int]:
    """Lengths that fit the room, in order of phase: stated ones and later ones are served first."""
    lengths: dict[Phase, int] = {}
    phases = list(stated)[::-1]
    phases.sort(key=lambda phase: stated[phase].source is Source.ESTIMATED)
    for phase in phases:
        lengths[phase] = min(stated[phase].us, room_us)
        room_us -= lengths[phase]
    return {phase: lengths[phase] for phase in stated}


def _is_duration(ns: object) -> bool:
    return type(ns) is int and 0 <= ns <= LONGEST_US * 1000
