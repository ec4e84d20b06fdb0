"""The summary on one request span, read without trust: what is missing, what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.analysis.spans import SpanRecord
from otel_llm.clock import is_instant
from otel_llm.timeline import Outcome, Phase, Side, Source
from otel_llm.timeline.counts import count
from otel_llm.timeline.layout import LONGEST_US

_SIDES = {side.value: side for side in Side}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_SOURCES = {source.value: source for source in Source}
_PHASE_US = {phase: semconv.phase_us(phase) for phase in Phase}
_INSIDE_E2E = (semconv.TTFT_US, semconv.TPOT_US, semconv.ITL_P50_US)


class Fault(Enum):
    """Why a request is left out: its summary contradicts itself, or parts of it are missing."""

    INVALID = "invalid"
    INCOMPLETE = "incomplete"


class Timed(NamedTuple):
    """How long a phase took, whole microseconds, and how that is known; None if it is not said."""

    us: int
    source: Source | None


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """One side of a request. With a `fault` its numbers mean nothing.

    Durations are whole microseconds; what is unknown is None or not in `phases`.
    """

    span: SpanRecord
    side: Side
    outcome: Outcome
    e2e_us: int = 0
    unaccounted_us: int = 0
    ttft_us: int | None = None
    phases: Mapping[Phase, Timed] | None = None
    fault: Fault | None = None

    def us(self, phase: Phase) -> int:
        """How long *phase* took here, 0 if nobody knows."""
        found = (self.phases or {}).get(phase)
        return found.us if found else 0

    def count(self, attribute: str) -> int | None:
        """An attribute that counts something, or None if it is absent or no count."""
        return count(self.span.attributes.get(attribute))

    def text(self, attribute: str) -> str | None:
        """An attribute that is a text, or None if it is absent or something else."""
        value = self.span.attributes.get(attribute)
        return value if isinstance(value, str) and value else None


class _InvalidError(Exception):
    """The summary contradicts itself."""


def is_request_span(span: SpanRecord) -> bool:
    """Whether *span* is one side of a request: it says which."""
    side = span.attributes.get(semconv.SIDE)
    return isinstance(side, str) and side in _SIDES


def read_summary(span: SpanRecord) -> RequestSpan:
    """The summary on a request span; whatever the attributes hold, it does not raise."""
    side = _SIDES[str(span.attributes[semconv.SIDE])]
    try:
        return _read(span, side)
    except _InvalidError:
        return RequestSpan(span, side, Outcome.ERROR, fault=Fault.INVALID)


def _read(span: SpanRecord, side: Side) -> RequestSpan:
    if not (is_instant(span.start_ns) and is_instant(span.end_ns) and span.start_ns <= span.end_ns):
        raise _InvalidError
    outcome, e2e = _outcome(span), _duration(span, semconv.E2E_US)
    phases = _phases(span)
    unaccounted = _duration(span, semconv.UNACCOUNTED_US)
    if outcome is None or e2e is None:
        return RequestSpan(span, side, outcome or Outcome.ERROR, fault=Fault.INCOMPLETE)
    rest = e2e - sum(each.us for each in phases.values())
    if rest < 0 or unaccounted not in {None, rest}:
        raise _InvalidError
    if any((_duration(span, name) or 0) > e2e for name in _INSIDE_E2E):
        raise _InvalidError
    ttft = _duration(span, semconv.TTFT_US)
    return RequestSpan(span, side, outcome, e2e, rest, ttft, phases)


def _outcome(span: SpanRecord) -> Outcome | None:
    value = span.attributes.get(semconv.OUTCOME)
    if value is None:
        return None
    if not isinstance(value, str) or value not in _OUTCOMES:
        raise _InvalidError
    return _OUTCOMES[value]


def _phases(span: SpanRecord) -> dict[Phase, Timed]:
    sources = _sources(span)
    return {
        phase: Timed(us, sources.get(phase.value))
        for phase, attribute in _PHASE_US.items()
        if (us := _duration(span, attribute)) is not None
    }


def _duration(span: SpanRecord, attribute: str) -> int | None:
    value = span.attributes.get(attribute)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LONGEST_US:
        raise _InvalidError
    return value


def _sources(span: SpanRecord) -> dict[str, Source | None]:
    stated = span.attributes.get(semconv.SOURCES)
    pairs = (each.partition("=") for each in stated.split(";")) if isinstance(stated, str) else ()
    return {phase: _SOURCES.get(source) for phase, _, source in pairs}
