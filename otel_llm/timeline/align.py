"""Engine stamps onto the request's timeline, without ever subtracting two clocks' values.

An engine on this host reads the same monotonic clock as we do, so its stamps fall between our
own readings around the call. Stamps that do not were read elsewhere (another node, another time
namespace, a wall clock that stepped): then only the differences among themselves are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from otel_llm.clock import YEAR_2200_NS, Anchor, is_instant
from otel_llm.timeline.evidence import EngineClock, EngineStamps, Sequence, Stamp
from otel_llm.timeline.marks import Mark, Part, Phase, Source

TOLERANCE_NS = 1_000_000
"""How far stamps may lie outside our own readings and still count as the same clock."""

_PHASE_ENDS = (
    (Phase.QUEUE, Mark.QUEUED, Mark.SCHEDULED),
    (Phase.PREFILL, Mark.SCHEDULED, Mark.FIRST_TOKEN),
    (Phase.DECODE, Mark.FIRST_TOKEN, Mark.LAST_TOKEN),
)


def aligned(stamps: EngineStamps, anchor: Anchor, until_ns: int | None = None) -> Sequence:
    """The sequence on the wall timeline: marks if the clocks agree, else durations only.

    *until_ns* is the latest that a stamp of our own clock can be, monotonic nanoseconds.
    """
    own = milestones(stamps)
    marks = _placed(own, stamps, anchor, until_ns)
    return Sequence(
        marks={} if marks is None else marks,
        reported=_durations(own) if marks is None else {},
        output_tokens=stamps.output_tokens,
        preemptions=stamps.preemptions,
        finish_reason=stamps.finish_reason,
        parts=preempted_parts(stamps.preempted, stamps.first_token) if stamps.preempted else {},
    )


def _placed(
    own: dict[Mark, float], stamps: EngineStamps, anchor: Anchor, until_ns: int | None
) -> dict[Mark, Stamp] | None:
    """The milestones as marks, or None if one of them was read from another clock."""
    low = anchor.monotonic_ns if stamps.handed_over_ns is None else stamps.handed_over_ns
    high = until_ns if stamps.last_seen_ns is None else stamps.last_seen_ns
    earliest = anchor.instant(low) - TOLERANCE_NS
    latest = YEAR_2200_NS if high is None else anchor.instant(high) + TOLERANCE_NS
    shift = 0 if stamps.clock is EngineClock.EPOCH_S else anchor.wall_ns - anchor.monotonic_ns
    marks = {}
    for mark, at_s in own.items():
        at_ns = round(at_s * 1e9) + shift
        if not (earliest <= at_ns <= latest and is_instant(at_ns)):
            return None
        marks[mark] = Stamp(at_ns, Source.REPORTED)
    return marks


def milestones(stamps: EngineStamps) -> dict[Mark, float]:
    """The stamps that happened. An engine's `finished` stands for LAST_TOKEN if it has no other."""
    last = stamps.last_token
    if not happened(last) and happened(stamps.first_token):
        last = stamps.finished
    named = (
        (Mark.QUEUED, stamps.queued),
        (Mark.SCHEDULED, stamps.scheduled),
        (Mark.FIRST_TOKEN, stamps.first_token),
        (Mark.LAST_TOKEN, last),
    )
    return {mark: at for mark, at in named if at is not None and happened(at)}


def happened(stamp: Any) -> bool:
    """False for None, zero, negative, infinite and not-a-number: a milestone that never was."""
    # Comparisons with not-a-number are False, and a bool is no time.
    return isinstance(stamp, _NUMBERS) and stamp is not True and 0 < stamp < 1e12


_NUMBERS = (float, int)  # a union would be made anew by every call


def from_events(events: Iterable[tuple[str, float]]) -> tuple[EngineStamps, dict[Part, int]]:
    """Milestones and preempted time from an engine's list of (event, seconds).

    Known events are `queued`, `scheduled`, `first_token`, `token`, `preempted` and `finished`.
    The first schedule ends the queue; time from a preemption to the next schedule is counted as
    preempted inside prefill or decode, whichever was open.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    spans: list[tuple[float, float | None]] = []
    for kind, at in events:
        if not happened(at):
            continue
        first.setdefault(kind, at)
        last[kind] = at
        if kind == "preempted":
            spans.append((at, None))
        elif kind in {"scheduled", "finished"}:
            spans = [(start, at if end is None else end) for start, end in spans]
    stamps = EngineStamps(
        queued=first.get("queued"),
        scheduled=first.get("scheduled"),
        first_token=first.get("first_token"),
        last_token=_last_token(first, last),
        preemptions=len(spans),
        preempted=tuple(spans),
    )
    return stamps, preempted_parts(stamps.preempted, stamps.first_token)


def preempted_parts(
    preempted: Iterable[tuple[float, float | None]], first_token: float | None
) -> dict[Part, int]:
    """Microseconds for which a sequence was preempted, inside prefill and inside decode.

    A preemption that began while another lasted is part of it; one without an end is not counted.
    """
    found: dict[Part, int] = {}
    until = 0.0
    for start, end in preempted:
        if end is None or not (happened(start) and happened(end)) or start < until:
            continue
        decoding = happened(first_token) and start >= (first_token or 0.0)
        part = Part.DECODE_PREEMPTED_US if decoding else Part.PREFILL_PREEMPTED_US
        found[part] = found.get(part, 0) + max(0, round((end - start) * 1e6))
        until = end
    return {part: us for part, us in found.items() if us}


def _last_token(first: dict[str, float], last: dict[str, float]) -> float | None:
    if "first_token" not in first:
        return None
    return last.get("finished") or last.get("token") or last["first_token"]


def _durations(own: dict[Mark, float]) -> dict[Phase, int]:
    found = {}
    for phase, start, end in _PHASE_ENDS:
        if start in own and end in own and own[end] >= own[start]:
            found[phase] = round((own[end] - own[start]) * 1e9)
    return found
