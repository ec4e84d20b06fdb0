"""Requests to figures: latencies, phases with their share, groups, outcomes, the slowest.

Latencies and phases are those of requests that ended `ok`, in seconds, each request counting as
many times as it stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from otel_llm import semconv
from otel_llm.analysis.quantiles import Distribution, describe
from otel_llm.analysis.requests import Found, Request
from otel_llm.analysis.segments import NAMES
from otel_llm.timeline import Outcome

MOST_GROUPS = 50
"""Per dimension; the models that users may ask for have no bound."""
SLOWEST = 10

LATENCIES: Mapping[str, Callable[[Request], int | None]] = {
    "ttft": lambda request: request.outermost.ttft_us,
    "tpot": lambda request: request.outer(semconv.TPOT_US),
    "itl": lambda request: request.inner(semconv.ITL_P50_US),
    "e2e": lambda request: request.e2e_us,
}
"""E2E is as the user saw it, TTFT from the attempt that was answered.

ITL is each request's median gap, where outputs are made.
"""
DIMENSIONS: Mapping[str, Callable[[Request], str | None]] = {
    "model": lambda request: request.model,
    "route": lambda request: request.route,
    "engine": lambda request: request.engine,
}


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """A phase where it is known, and its share of all E2E; None of what there is nothing of."""

    times: Distribution | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """A set of requests: `requests` and `outcomes` as kept, `estimated` as seen.

    `skewed` are those of which a side lies outside its caller because their clocks differ.
    """

    requests: int
    estimated: float
    outcomes: Mapping[str, int]
    latency: Mapping[str, Distribution | None]
    phases: Mapping[str, PhaseFigures]
    skewed: int = 0


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that was found.

    `weighted` is True if every request says for how many it stands. `ok` are the requests behind
    latencies and phases, the slowest first; `slowest` are the first few of them.
    """

    all: Figures
    invalid: int
    incomplete: int
    weighted: bool
    groups: Mapping[str, Mapping[str, Figures]]
    slowest: tuple[Request, ...]
    ok: tuple[Request, ...] = field(repr=False, default=())


def analyse(found: Found, *, slowest: int = SLOWEST) -> Analysis:
    """The figures of the requests that were found, and the *slowest* of those that ended `ok`."""
    requests = found.requests
    ok = sorted(_successes(requests), key=lambda each: each.e2e_us, reverse=True)
    return Analysis(
        all=figures(requests),
        invalid=found.invalid,
        incomplete=found.incomplete,
        weighted=bool(requests) and all(each.weighed for each in requests),
        groups={name: _groups(requests, key) for name, key in DIMENSIONS.items()},
        slowest=tuple(ok[:slowest]),
        ok=tuple(ok),
    )


def figures(requests: Sequence[Request]) -> Figures:
    """The figures of some requests."""
    ok = _successes(requests)
    outcomes = Counter(each.outcome for each in requests)
    return Figures(
        requests=len(requests),
        estimated=sum(each.weight for each in requests),
        outcomes={outcome.value: outcomes[outcome] for outcome in Outcome},
        latency={
            name: _described((read(each), each.weight) for each in ok)
            for name, read in LATENCIES.items()
        },
        phases=_phases(ok),
        skewed=sum(each.skewed for each in requests),
    )


def _phases(ok: Sequence[Request]) -> dict[str, PhaseFigures]:
    durations = [(each.durations, each.weight) for each in ok]
    all_us = sum(each.e2e_us * each.weight for each in ok)
    found = {}
    for name in NAMES:
        known = [(each[name].us, weight) for each, weight in durations if name in each]
        spent = sum(us * weight for us, weight in known)
        found[name] = PhaseFigures(_described(known), spent / all_us if all_us else None)
    return found


def _described(values: Iterable[tuple[int | None, float]]) -> Distribution | None:
    return describe((us / 1e6, weight) for us, weight in values if us is not None)


def _groups(
    requests: Iterable[Request], key: Callable[[Request], str | None]
) -> dict[str, Figures]:
    """Figures per value, the most frequent first; requests without a value are in no group."""
    members: dict[str, list[Request]] = {}
    for request in requests:
        if (value := key(request)) is not None:
            members.setdefault(value, []).append(request)
    largest = sorted(members.items(), key=lambda each: (-sum(r.weight for r in each[1]), each[0]))
    return {value: figures(each) for value, each in largest[:MOST_GROUPS]}


def _successes(requests: Iterable[Request]) -> list[Request]:
    return [each for each in requests if each.outcome is Outcome.OK]
