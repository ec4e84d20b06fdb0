"""One request's time cut into segments that tile its E2E, from the summaries of all its sides.

Only durations are used. The network's time is the client's TTFT less the time that the server
took to hand the first token on: whatever a client does later holds its reader, too. What is left
between the two windows is delivery, to a reader who may be slow. Where an inner side lies inside
an outer one is not read from clocks: of the network's time, what is known to come first (setting
up the connection) comes first, and half of the rest. So a segment's length is a fact and, on an
inner side, its place a good guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.analysis.summary import RequestSpan
from otel_llm.timeline import Phase, Side, Source
from otel_llm.timeline.marks import combined

NETWORK = "network"
UNACCOUNTED = "unaccounted"
NAMES = (Phase.RETRY.value, NETWORK, *(each.value for each in list(Phase)[1:]), UNACCOUNTED)
"""Everything a request's time can go to, in the order in which it is told."""
_HEAD = {Phase.RETRY.value, Phase.PREPROCESS.value}
_LATE = {Phase.FIRST_TOKEN.value, Phase.DECODE.value, Phase.DELIVERY.value}
_WAITS = (Phase.LOAD, Phase.QUEUE, Phase.PREFILL)
_SETUP = (semconv.NET_DNS_US, semconv.NET_CONNECT_US, semconv.NET_TLS_US)
_FAR = {Side.CLIENT, Side.PROXY}


class Segment(NamedTuple):
    """A stretch of a request; `source` is None where nobody said how it is known."""

    name: str
    us: int
    source: Source | None


class Placed(NamedTuple):
    """A stretch of a request, microseconds from the request's start."""

    name: str
    start_us: int
    us: int
    source: Source | None


class Lane(NamedTuple):
    """One side as it saw itself, from `start_us` after the request's start."""

    side: Side
    start_us: int
    segments: tuple[Segment, ...]


class Tiling(NamedTuple):
    """A side with all that is inside it.

    `first_us` is when its first token was handed on, None if it does not say. Without
    `network_known` the network's time inside is an upper bound.
    """

    segments: tuple[Segment, ...]
    lanes: tuple[Lane, ...]
    first_us: int | None = None
    network_known: bool = True

    @property
    def us(self) -> int:
        """How long it takes in all."""
        return total(self.segments)


def total(segments: Iterable[Segment]) -> int:
    """The length of several segments."""
    return sum(each.us for each in segments)


def durations(segments: Iterable[Segment], *, network_known: bool = True) -> dict[str, Segment]:
    """Segments of the same name as one; `unaccounted` is always there, and 0 if nothing is.

    How the network's time is split is a guess; how long it is in all may be known nevertheless.
    """
    network = Source.DERIVED if network_known else Source.ESTIMATED
    found: dict[str, Segment] = {}
    for name, us, source in segments:
        before = found.get(name)
        if before is None:
            found[name] = Segment(name, us, network if name == NETWORK else source)
        else:
            found[name] = before._replace(us=before.us + us, source=_joint(before, source))
    return found if UNACCOUNTED in found else found | {UNACCOUNTED: _rest(0)}


def _joint(before: Segment, source: Source | None) -> Source | None:
    if before.name == NETWORK or before.source is None or source is None:
        return before.source
    return combined(before.source, source)


def placed(segments: Iterable[Segment], start_us: int = 0) -> Iterator[Placed]:
    """Segments with their starts; neighbours of one name are one, empty ones are left out."""
    last: Placed | None = None
    for name, us, source in segments:
        if not us:
            continue
        if last is not None and last.name == name and last.source is source:
            last = last._replace(us=last.us + us)
        else:
            if last is not None:
                yield last
            last = Placed(name, start_us, us, source)
        start_us += us
    if last is not None:
        yield last


def own(side: RequestSpan) -> Tiling:
    """What one side saw, alone."""
    segments = tuple(_laid(side))
    return Tiling(segments, (Lane(side.side, 0, segments),), _handed_on(side))


def over_network(outer: RequestSpan, inner: Tiling) -> Tiling:
    """*outer* with *inner* at the other end of a network."""
    retry, segments, gap = _inside(outer, inner)
    known = _network(outer, inner, gap)
    network = gap if known is None else known
    out = _way_out(outer, network)
    late = () if network == gap else (_segment(Phase.DELIVERY, gap - network, Source.DERIVED),)
    return Tiling(
        (
            *retry,
            Segment(NETWORK, out, Source.ESTIMATED),
            *_filled(segments, outer),
            Segment(NETWORK, network - out, Source.ESTIMATED),
            *late,
        ),
        (*own(outer).lanes, *_shifted(inner.lanes, total(retry) + out)),
        _handed_on(outer),
        known is not None and inner.network_known,
    )


def in_process(outer: RequestSpan, inner: Tiling) -> Tiling:
    """*outer* with *inner* called by it directly: what lies between them is the outer's own."""
    retry, segments, gap = _inside(outer, inner)
    known = durations(segments)
    first = 0 if Phase.PREPROCESS in known else outer.us(Phase.PREPROCESS)
    told = known.get(Phase.DELIVERY.value, _rest(0)).us
    pre = min(first, gap)
    post = min(max(0, outer.us(Phase.DELIVERY) - told), gap - pre)
    before = _phases(outer, (Phase.PREPROCESS,), pre)
    return Tiling(
        (
            *retry,
            *before,
            _rest(gap - pre - post),
            *_filled(_first_token_apart(segments, outer), outer),
            *_phases(outer, (Phase.DELIVERY,), post),
        ),
        (*own(outer).lanes, *_shifted(inner.lanes, total(retry) + gap - post)),
        _handed_on(outer),
        inner.network_known,
    )


def one_after_other(first: Tiling, second: Tiling) -> Tiling:
    """Two engines that do one request in turn: one prefills it, the other generates."""
    later = None if second.first_us is None else first.us + second.first_us
    return Tiling(
        first.segments + second.segments,
        (*first.lanes, *_shifted(second.lanes, first.us)),
        later,
        second.network_known,
    )


def _laid(side: RequestSpan) -> Iterator[Segment]:
    """A side's phases in their order, with what is unaccounted where it must have been."""
    phases = [_segment(phase, *timed) for phase, timed in (side.phases or {}).items()]
    split = _first_token_at(side, phases)
    early, late = phases[:split], phases[split:]
    head = [each for each in early if each.name in _HEAD]
    tail = [each for each in late if each.name == Phase.DELIVERY]
    rest_early, rest_late = _rests(side, total(early))
    yield from head
    yield _rest(rest_early)
    yield from early[len(head) :]
    yield from late[: len(late) - len(tail)]
    yield _rest(rest_late)
    yield from tail


def _first_token_at(side: RequestSpan, phases: list[Segment]) -> int:
    """How many phases end by the first token; a client's wait for it does, too."""
    late = _LATE - {Phase.FIRST_TOKEN.value} if side.side is Side.CLIENT else _LATE
    return sum(1 for each in phases if each.name not in late)


def _rests(side: RequestSpan, early_us: int) -> tuple[int, int]:
    """What is unaccounted before and after the first token.

    Without a first token: on a far side before its phases, which end where the engine's work does.
    """
    if side.ttft_us is not None:
        early = side.us(Phase.RETRY) + side.ttft_us - early_us
        if 0 <= early <= side.unaccounted_us:
            return early, side.unaccounted_us - early
    return (side.unaccounted_us, 0) if side.side in _FAR else (0, side.unaccounted_us)


def _handed_on(side: RequestSpan) -> int | None:
    """When the first token left this side; a client is where it arrives."""
    if side.ttft_us is None:
        return None
    delivered = 0 if side.side is Side.CLIENT else side.us(Phase.FIRST_TOKEN)
    return side.us(Phase.RETRY) + side.ttft_us + delivered


def _inside(
    outer: RequestSpan, inner: Tiling
) -> tuple[tuple[Segment, ...], tuple[Segment, ...], int]:
    """The outer's retry, the inner's segments cut to the room they have, and what is left of it."""
    retry = _phases(outer, (Phase.RETRY,), outer.e2e_us)
    room = outer.e2e_us - total(retry)
    segments = tuple(_cut(inner.segments, room))
    return retry, segments, room - total(segments)


def _cut(segments: Iterable[Segment], room: int) -> Iterator[Segment]:
    """Segments up to *room*: an inner side may end a little after the outer has all it wants."""
    for each in segments:
        us = min(each.us, room)
        room -= us
        yield each if us == each.us else Segment(each.name, us, Source.ESTIMATED)


def _network(outer: RequestSpan, inner: Tiling, gap: int) -> int | None:
    """The network's part of *gap*; None if the far side does not say when its first token left.

    A reply in one piece has no reader before its end, and all of it is the network's.
    """
    if outer.ttft_us is None:
        return gap
    if inner.first_us is None:
        return None
    return min(max(0, outer.ttft_us - inner.first_us), gap)


def _way_out(outer: RequestSpan, network: int) -> int:
    """How much of the network's time was the way to the server."""
    setup = min(sum(outer.count(each) or 0 for each in _SETUP), network)
    return setup + (network - setup) // 2


def _filled(segments: tuple[Segment, ...], outer: RequestSpan) -> Iterator[Segment]:
    """*segments* with what the outer side knows of times that no inner side accounts for."""
    known = {each.name for each in segments}
    missing = [*_WAITS, Phase.DECODE]
    if outer.side is Side.CLIENT and known.isdisjoint({*_WAITS, Phase.FIRST_TOKEN}):
        missing.insert(3, Phase.FIRST_TOKEN)
    waiting = [
        _segment(phase, *timed)
        for phase in missing
        if phase not in known and (timed := (outer.phases or {}).get(phase)) is not None
    ]
    for each in segments:
        yield from _replaced(each, waiting) if each.name == UNACCOUNTED else (each,)


def _replaced(rest: Segment, waiting: list[Segment]) -> Iterator[Segment]:
    """The phases that fit into *rest*; the last may be cut, by not more than half."""
    room = rest.us
    while waiting and waiting[0].us <= 2 * room:
        yield from _cut([waiting[0]], room)
        room -= min(room, waiting.pop(0).us)
    yield _rest(room)


def _first_token_apart(segments: tuple[Segment, ...], outer: RequestSpan) -> tuple[Segment, ...]:
    """An engine does not see its first token wait to be sent; the server does."""
    if Phase.FIRST_TOKEN in {each.name for each in segments}:
        return segments
    found: list[Segment] = []
    for each in segments:
        if each.name == Phase.DECODE:
            first = _phases(outer, (Phase.FIRST_TOKEN,), each.us)
            found += [*first, each._replace(us=each.us - total(first))]
        else:
            found.append(each)
    return tuple(found)


def _phases(side: RequestSpan, names: tuple[Phase, ...], room: int) -> tuple[Segment, ...]:
    known = side.phases or {}
    return tuple(_cut((_segment(each, *known[each]) for each in names if each in known), room))


def _segment(phase: Phase, us: int, source: Source | None) -> Segment:
    return Segment(phase.value, us, source)


def _rest(us: int) -> Segment:
    return Segment(UNACCOUNTED, us, Source.DERIVED)


def _shifted(lanes: tuple[Lane, ...], us: int) -> Iterator[Lane]:
    return (each._replace(start_us=each.start_us + us) for each in lanes)
