"""Spans to requests: which sides belong together, where the time went, what one stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.analysis import segments as tile
from otel_llm.analysis.clocks import ClockOffset, clock_offset
from otel_llm.analysis.segments import Lane, Segment, Tiling
from otel_llm.analysis.spans import SpanRecord
from otel_llm.analysis.summary import Fault, RequestSpan
from otel_llm.analysis.trees import Forest, Node, forest
from otel_llm.timeline import Outcome, Part, Side

LARGEST_WEIGHT = 2.0**56
"""The smallest probability that trace state can tell is 2^-56."""
MOST_SIDES = 16
"""Sides further in than this are not looked at: no real request has as many."""
PREFILL, DECODE = "prefill", "decode"
"""Roles of engines that share one request's work."""
_UNANSWERED = {Outcome.REJECTED, Outcome.ERROR}
_FAR = {Side.CLIENT, Side.PROXY}


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a user, seen from all sides that were recorded.

    `sides` are those that answered, outermost first. `segments` tile `e2e_us` (whole
    microseconds, as all times here): phases, `network` and `unaccounted`. `durations` are the same
    by name: what is unknown is absent, `unaccounted` never is. `lanes` show each side as it saw
    itself. A request stands for `weight` requests; without `weighed` nobody said so, and it is 1.
    `hops` counts requests made on its way that begin with a client of their own. `offsets` bound
    how far the clocks of sides behind a network are ahead of their caller's.
    """

    sides: tuple[RequestSpan, ...]
    segments: tuple[Segment, ...]
    lanes: tuple[Lane, ...]
    durations: Mapping[str, Segment]
    weight: float = 1.0
    weighed: bool = False
    hops: int = 0
    offsets: tuple[ClockOffset, ...] = ()

    @property
    def skewed(self) -> bool:
        """Whether a side lies outside its caller by their clocks; nothing is moved for it."""
        return any(each.skewed for each in self.offsets)

    @property
    def outermost(self) -> RequestSpan:
        """The side nearest to the user."""
        return self.sides[0]

    @property
    def outcome(self) -> Outcome:
        """How it ended for the user."""
        return self.outermost.outcome

    @property
    def e2e_us(self) -> int:
        """How long it took for the user."""
        return self.outermost.e2e_us

    @property
    def model(self) -> str | None:
        """The model that was asked for."""
        return self.text(semconv.REQUEST_MODEL)

    @property
    def route(self) -> str | None:
        """The HTTP route on the server."""
        return self.text(semconv.HTTP_ROUTE)

    @property
    def engine(self) -> str | None:
        """The engine: what a reply has shown, else the provider that the innermost side names."""
        inward = self.sides[::-1]
        named = (each.text(semconv.ENGINE_NAME) for each in inward)
        provided = (each.text(semconv.PROVIDER) for each in inward)
        return next((each for each in (*named, *provided) if each), None)

    def text(self, attribute: str) -> str | None:
        """A text that the outermost side which has it gives."""
        return next((found for each in self.sides if (found := each.text(attribute))), None)

    def outer(self, attribute: str) -> int | None:
        """A count as the outermost side that has it saw it."""
        return _first_count(self.sides, attribute)

    def inner(self, attribute: str) -> int | None:
        """A count as the innermost side that has it saw it."""
        return _first_count(self.sides[::-1], attribute)

    def part(self, part: Part) -> int | None:
        """What is known of a part; a KV transfer counts where the cache arrives."""
        sides = self.sides[::-1]
        if part is Part.QUEUE_KV_TRANSFER_US:
            sides = tuple(each for each in sides if each.text(semconv.ROLE) != PREFILL)
        return _first_count(sides, semconv.part(part.value))


class Found(NamedTuple):
    """The requests that can be used, and how many cannot: contradictory, or with parts missing."""

    requests: tuple[Request, ...] = ()
    invalid: int = 0
    incomplete: int = 0


def requests_of(spans: Iterable[SpanRecord]) -> Found:
    """The outermost requests in *spans*, which may be of many traces and in any order.

    Never raises, whatever attributes hold.
    """
    traces: dict[str, list[SpanRecord]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    found = [requests_of_trace(each) for each in traces.values()]
    return Found(
        tuple(request for each in found for request in each.requests),
        sum(each.invalid for each in found),
        sum(each.incomplete for each in found),
    )


def requests_of_trace(spans: Sequence[SpanRecord]) -> Found:
    """The outermost requests of one trace, all of whose spans are given."""
    trees = forest(spans)
    torn = _is_torn(trees)
    requests: list[Request] = []
    faults = {Fault.INVALID: 0, Fault.INCOMPLETE: 0}
    for root in trees.roots:
        fault = _fault(root, torn)
        if fault is None:
            requests.append(_request(root))
        else:
            faults[fault] += 1
    return Found(tuple(requests), faults[Fault.INVALID], faults[Fault.INCOMPLETE])


def _is_torn(trees: Forest) -> bool:
    """A server whose caller is missing, beside a client without a server: one was the other's."""
    severed = any(each.orphan and each.request.side is not Side.CLIENT for each in trees.roots)
    return severed and any(_is_open_client(each) for each in trees.nodes)


def _is_open_client(node: Node) -> bool:
    return node.request.side is Side.CLIENT and not node.inner


def _fault(root: Node, torn: bool) -> Fault | None:
    faults = {each.request.fault for each in root.owned()}
    if Fault.INVALID in faults:
        return Fault.INVALID
    severed = torn and (root.orphan or _is_open_client(root))
    return Fault.INCOMPLETE if severed or Fault.INCOMPLETE in faults else None


def _request(root: Node) -> Request:
    levels = list(_levels(root))
    tiling = _tiling(levels)
    weight = _weight(root)
    return Request(
        sides=tuple(node.request for level in levels for node in level),
        segments=tiling.segments,
        lanes=tiling.lanes,
        durations=tile.durations(tiling.segments, network_known=tiling.network_known),
        weight=1.0 if weight is None else weight,
        weighed=weight is not None,
        hops=sum(len(each.children) - len(each.inner) for each in root.owned()),
        offsets=tuple(_offsets(levels)),
    )


def _levels(root: Node) -> Iterator[tuple[Node, ...]]:
    """The sides that answered, inwards: one per level, or two engines that shared the work."""
    level: tuple[Node, ...] = (root,)
    for _ in range(MOST_SIDES):
        yield level
        answered = [each for each in level[-1].inner if _may_answer(level[-1], each)]
        if not answered:
            return
        level = _answering(level[-1], answered)


def _may_answer(outer: Node, inner: Node) -> bool:
    """An attempt that failed gave no answer that was good; a decoding engine owns its prefill."""
    if outer.request.outcome is Outcome.OK and inner.request.outcome in _UNANSWERED:
        return False
    roles = outer.request.text(semconv.ROLE), inner.request.text(semconv.ROLE)
    return roles != (DECODE, PREFILL)


def _answering(outer: Node, candidates: list[Node]) -> tuple[Node, ...]:
    """Of several attempts the one that ended as the outer side did, and the latest of those."""

    def key(node: Node) -> tuple[bool, int]:
        return node.request.outcome is outer.request.outcome, node.request.span.start_ns

    prefill = [each for each in candidates if each.request.text(semconv.ROLE) == PREFILL]
    others = [each for each in candidates if each not in prefill]
    if not prefill or not others:
        return (max(candidates, key=key),)
    pair = max(prefill, key=key), max(others, key=key)
    in_turn = sum(each.request.e2e_us for each in pair) <= outer.request.e2e_us
    return pair if in_turn else pair[1:]


def _tiling(levels: Sequence[tuple[Node, ...]]) -> Tiling:
    inner: Tiling | None = None
    for level in reversed(levels):
        request = level[-1].request
        inner = tile.own(request) if inner is None else _around(request, inner)
        if len(level) > 1:
            inner = tile.one_after_other(tile.own(level[0].request), inner)
    return inner or Tiling((), ())


def _around(outer: RequestSpan, inner: Tiling) -> Tiling:
    """A server that calls an engine does so in its process, or by a client that nobody watched."""
    far = outer.side in _FAR
    return tile.over_network(outer, inner) if far else tile.in_process(outer, inner)


def _offsets(levels: Sequence[tuple[Node, ...]]) -> Iterator[ClockOffset]:
    """Of every side behind a network; two that shared the work bound nothing alone."""
    for outer, inner in pairwise(levels):
        if outer[-1].request.side in _FAR and len(inner) == 1:
            offset = clock_offset(outer[-1].request, inner[0].request)
            if offset is not None:
                yield offset


def _weight(root: Node) -> float | None:
    """What the trace's spans say that it stands for; None if they say nothing that can be."""
    stated = (each.request.span.attributes.get(semconv.ADJUSTED_COUNT) for each in root.owned())
    return next((weight for each in stated if (weight := _as_weight(each)) is not None), None)


def _as_weight(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 1 <= value <= LARGEST_WEIGHT else None


def _first_count(sides: Iterable[RequestSpan], attribute: str) -> int | None:
    return next((n for each in sides if (n := each.count(attribute)) is not None), None)
