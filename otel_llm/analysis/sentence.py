"""One plain sentence on where a request's time went.

What matters is what took longer than it usually does: phases are ranked by their excess over the
median of all requests, or by their length where there are too few requests to have a usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.analysis.breakdown import Analysis
from otel_llm.analysis.quantiles import quantile
from otel_llm.analysis.requests import Request
from otel_llm.analysis.segments import NAMES, NETWORK, UNACCOUNTED, Segment
from otel_llm.analysis.words import listed, percent, seconds, times
from otel_llm.timeline import Part, Phase, Side, Source

FEW = 10
"""With fewer requests than this nothing is compared with the median."""
_WORTH = 0.1
"""The share of the request from which on a second thing is told."""
_LONG = 1.5
_QUEUED, _FINISHED = semconv.REPLICA_WHEN_QUEUED, semconv.REPLICA_WHEN_FINISHED


def sentence(analysis: Analysis) -> str:
    """Where the slowest request's time went; or that there is none, and what there was."""
    if analysis.ok:
        return explain(analysis.ok[0], analysis.ok, named="The slowest request")
    found = [f"{n:,} {name}" for name, n in analysis.all.outcomes.items() if n]
    if not found:
        return "No request was found."
    requests = analysis.all.requests
    who = "The one request" if requests == 1 else f"None of the {requests:,} requests"
    verb = "did not end" if requests == 1 else "ended"
    return f"{who} {verb} well: {listed(found)}."


def explain(request: Request, among: Sequence[Request], *, named: str = "The request") -> str:
    """Where *request*'s time went, compared with the typical request *among* all."""
    ranked = _ranked(request, _typical(among))
    size = f"{named} ({seconds(request.e2e_us)}{_multiple(request, among)})"
    if not request.e2e_us or not ranked:
        return f"{size} took no time that could be told apart."
    told = ranked[:3]
    clauses = [f"{size} {_foremost(request, told[0])}"]
    clauses += [_next(request, each) for each in told[1:]]
    return "; ".join(clauses + _reader(request)) + "."


def _typical(among: Sequence[Request]) -> Mapping[str, float]:
    """The median of each phase, 0 for a request without it; nothing if there are few."""
    if len(among) < FEW:
        return {}
    found = [(each.durations, each.weight) for each in among]
    medians = {}
    for name in NAMES:
        lengths = [(float(each[name].us) if name in each else 0.0, w) for each, w in found]
        medians[name] = quantile(lengths, 0.5) or 0.0
    return medians


def _ranked(request: Request, typical: Mapping[str, float]) -> list[Segment]:
    """What took longest beyond its usual time; after the first, only what is worth telling."""

    def excess(segment: Segment) -> float:
        return segment.us - typical.get(segment.name, 0.0)

    spent = sorted((s for s in request.durations.values() if s.us), key=excess, reverse=True)
    worth = _WORTH * request.e2e_us
    return spent[:1] + [each for each in spent[1:] if excess(each) >= worth]


def _multiple(request: Request, among: Sequence[Request]) -> str:
    median = quantile([(float(each.e2e_us), each.weight) for each in among], 0.5) or 0.0
    if len(among) < FEW or median <= 0 or request.e2e_us < _LONG * median:
        return ""
    ratio = request.e2e_us / median
    return f", {ratio:.1f} times the median" if ratio < 9.95 else f", {ratio:.0f} times the median"


def _length(segment: Segment) -> str:
    bound = "at most " if segment.source is Source.ESTIMATED else ""
    return bound + seconds(segment.us)


def _foremost(request: Request, segment: Segment) -> str:
    share = f"{_length(segment)}, {percent(segment.us / request.e2e_us)} of it,"
    if segment.name == UNACCOUNTED:
        return f"cannot be explained: of {share} no side told anything"
    where, what, more = _PLACES[segment.name](request)
    return f"spent {share} {where}{what}{more}"


def _next(request: Request, segment: Segment) -> str:
    if segment.name == UNACCOUNTED:
        return f"of another {_length(segment)} no side told anything"
    _, what, more = _PLACES[segment.name](request)
    return f"{what} took {_length(segment)}{more}"


class _Place(NamedTuple):
    """`spent 5.1 s` *in* *the queue*, *while 37 requests ran*."""

    where: str
    what: str
    more: str = ""


def _queue(request: Request) -> _Place:
    running, waiting = request.inner(_QUEUED.running), request.inner(_QUEUED.waiting)
    cache = request.inner(_QUEUED.kv_cache_percent)
    moved = request.part(Part.QUEUE_KV_TRANSFER_US)
    around = []
    if running is not None:
        around.append(f"{times(running, 'request')} ran")
    if waiting:
        around.append(f"{waiting:,} waited")
    if cache is not None:
        around.append(f"the KV cache was {cache} % full")
    more = f", {seconds(moved)} of that for the KV transfer" if moved else ""
    return _Place("in ", "the queue", f"{more}, while {listed(around)}" if around else more)


def _prefill(request: Request) -> _Place:
    tokens, cached = request.inner(semconv.INPUT_TOKENS), request.inner(semconv.CACHE_READ_TOKENS)
    what = f"prefill of {times(tokens, 'token')}" if tokens is not None else "prefill"
    more = f", {cached:,} of them cached" if tokens and cached else ""
    return _Place("in ", what, more + _preempted(request, Part.PREFILL_PREEMPTED_US))


def _decode(request: Request) -> _Place:
    tokens, running = request.inner(semconv.OUTPUT_TOKENS), request.inner(_FINISHED.running)
    stalls, stalled = request.outer(semconv.STALLS), request.outer(semconv.STALL_US)
    what = f"decoding {times(tokens, 'token')}" if tokens is not None else "decoding"
    more = _preempted(request, Part.DECODE_PREEMPTED_US)
    if stalls and stalled:
        more += f", with {times(stalls, 'stall')} of {seconds(stalled)} in all"
    if running is not None and running > 1:
        more += f", among {running:,} running requests"
    return _Place("", what, more)


def _preempted(request: Request, part: Part) -> str:
    lost, count = request.part(part), request.inner(semconv.PREEMPTIONS)
    if not lost:
        return ""
    often = f" ({times(count, 'preemption')})" if count else ""
    return f", {seconds(lost)} of that preempted{often}"


def _network(request: Request) -> _Place:
    more = ""
    if sent := request.outer(semconv.NET_RETRANSMITS):
        more += f", with {times(sent, 'retransmit')}"
    if way := request.outer(semconv.NET_RTT_US):
        more += f", at a round trip of {seconds(way)}"
    return _Place("on ", "the network", more)


def _retry(request: Request) -> _Place:
    attempts = request.outer(semconv.ATTEMPTS) or 0
    many = attempts > 1
    return _Place("on ", times(attempts - 1, "earlier attempt") if many else "earlier attempts")


def _first_token(request: Request) -> _Place:
    if len(request.sides) == 1 and request.outermost.side is Side.CLIENT:
        return _Place("", "waiting for the first token", ", of which no server told more")
    return _Place("", "getting the first token out of the server")


_PLACES: Mapping[str, Callable[[Request], _Place]] = {
    Phase.RETRY: _retry,
    NETWORK: _network,
    Phase.PREPROCESS: lambda _: _Place("in ", "preprocessing", " (template, tokens, hand-over)"),
    Phase.LOAD: lambda _: _Place("", "waiting for the model to load"),
    Phase.QUEUE: _queue,
    Phase.PREFILL: _prefill,
    Phase.FIRST_TOKEN: _first_token,
    Phase.DECODE: _decode,
    Phase.DELIVERY: lambda _: _Place("", "delivering the rest", " after the last token"),
}


def _reader(request: Request) -> list[str]:
    """An application that reads slowly looks like a slow delivery or model; it is neither."""
    stalled = request.outer(semconv.CONSUMER_STALL_US) or 0
    if stalled < _WORTH * request.e2e_us:
        return []
    return [f"meanwhile its reader left chunks unread for {seconds(stalled)}"]
