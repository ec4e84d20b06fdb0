"""The rows read in Python: one span in, our attributes for it out. Pure, and never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from otel_llm import semconv
from otel_llm.analysis.spans import SpanRecord
from otel_llm.analysis.summary import Timed
from otel_llm.clock import is_instant
from otel_llm.servers.native.rows import REASONS, ROWS, Copy, Row, Time, Unit, Verdict
from otel_llm.servers.native.stages import Key, key_of, stages_of
from otel_llm.timeline import Outcome, Phase, Side, Source
from otel_llm.timeline.counts import count
from otel_llm.timeline.layout import LONGEST_US
from otel_llm.timeline.outcome import UNKNOWN

Value = str | int | tuple[str, ...]
Found = dict[str, Value]
NOTHING: Mapping[Phase, SpanRecord] = MappingProxyType({})
_NS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def rewritten(spans: Iterable[SpanRecord]) -> Iterator[SpanRecord]:
    """The same spans, with our attributes added to those that an engine made by itself.

    Given whole traces, a request also has the phases that its engine shows as spans below it.
    """
    spans = list(spans)
    stages = _stages(spans)
    for span in spans:
        found = _summary_of(span, stages.get(key_of(span), NOTHING))
        yield replace(span, attributes={**span.attributes, **found}) if found else span


def summary_of(span: SpanRecord) -> Found:
    """Our attributes for an engine's own span; none for any other, and for one that has a side.

    Durations are whole microseconds, what the engine does not say is absent, and what the span
    says itself under a name of the conventions is left to it. Never raises.
    """
    return _summary_of(span, NOTHING)


def _summary_of(span: SpanRecord, stages: Mapping[Phase, SpanRecord]) -> Found:
    row = _row(span)
    if row is not None:
        return _summary(row, span, stages)
    phase = _stage(span)
    if phase is None:
        return {}
    return {semconv.phase_us(phase): _e2e(span), semconv.PHASE_SOURCE: Source.REPORTED.value}


def _stages(spans: Sequence[SpanRecord]) -> dict[Key, dict[Phase, SpanRecord]]:
    phases = {key_of(each): phase for each in spans if (phase := _stage(each)) is not None}
    if not phases:
        return {}
    return stages_of(spans, phases, (key_of(each) for each in spans if _row(each) is not None))


def _row(span: SpanRecord) -> Row | None:
    """The engine whose request span this is."""
    for row in _scoped(span):
        if span.attributes.get(row.marker) is not None and _matches(row.name, span.name):
            return row
    return None


def _stage(span: SpanRecord) -> Phase | None:
    """The phase that this span shows."""
    return next((p for row in _scoped(span) for name, p in row.stages if name == span.name), None)


def _scoped(span: SpanRecord) -> tuple[Row, ...]:
    """The engines that may have made the span; none if it has a side, or no times."""
    if not _is_sound(span) or span.attributes.get(semconv.SIDE) is not None:
        return ()
    return tuple(row for row in ROWS if row.scope is None or _matches(row.scope, span.scope))


def _summary(row: Row, span: SpanRecord, stages: Mapping[Phase, SpanRecord]) -> Found:
    given, e2e = span.attributes, _e2e(span)
    found: Found = {
        semconv.SIDE: Side.ENGINE.value,
        semconv.PROVIDER: row.engine,
        semconv.E2E_US: e2e,
        **_phases(_stated(row, given, stages), e2e),
        **_within(row, given, e2e),
        **{each.target: each.value for each in row.named if _matches(each.pattern, span.name)},
        **{each.target: told for each in row.copies if (told := _copied(given, each)) is not None},
        **_ending(row, span),
    }
    said = {k for k, value in given.items() if value is not None}
    found = {k: told for k, told in found.items() if k.startswith(semconv.OURS) or k not in said}
    return {**found, **_tpot(found, given), **_reasons(given)}


def _stated(
    row: Row, given: Mapping[str, object], stages: Mapping[Phase, SpanRecord]
) -> dict[Phase, Timed]:
    """What the request's span says of phases, and of others what their own spans do."""
    stated = {phase: Timed(_e2e(each), Source.REPORTED) for phase, each in stages.items()}
    for phase, time, without in row.phases:
        us, less = _us(given, time), 0 if without is None else _us(given, without)
        if us is not None and less is not None and us >= less:
            source = Source.REPORTED if without is None else Source.DERIVED
            stated[phase] = Timed(us - less, source)
    return stated


def _phases(stated: Mapping[Phase, Timed], e2e: int) -> Found:
    """The phases, each cut to the room that those before it leave, and what they leave."""
    found: Found = {}
    sources, room = [], e2e
    for phase in Phase:
        if phase not in stated:
            continue
        us, source = stated[phase]
        if us > room:
            found[semconv.reported_us(phase)] = us
            us, source = room, Source.ESTIMATED
        found[semconv.phase_us(phase)] = us
        sources.append(f"{phase}={source}")
        room -= us
    found[semconv.UNACCOUNTED_US] = room
    return {**found, semconv.SOURCES: ";".join(sources)} if sources else found


def _within(row: Row, given: Mapping[str, object], e2e: int) -> Found:
    """Times that are no phases; one longer than the request, or a TTFT of zero, is not one."""
    found: Found = {}
    ttft = None if row.ttft is None else _us(given, row.ttft)
    if ttft is not None and 0 < ttft <= e2e:
        found[semconv.TTFT_US] = ttft
    for name, time in row.values:
        us = _us(given, time)
        if us is not None and us <= e2e:
            found[name] = us
    return found


def _tpot(found: Found, given: Mapping[str, object]) -> Found:
    """Rounded to the nearest; of several sequences, or of a decode that was cut, none is known."""
    if {**given, **found}.get(semconv.CHOICE_COUNT) is not None:
        return {}
    decode = found.get(semconv.phase_us(Phase.DECODE))
    tokens = count(found.get(semconv.OUTPUT_TOKENS, given.get(semconv.OUTPUT_TOKENS)))
    cut = semconv.reported_us(Phase.DECODE) in found
    if not isinstance(decode, int) or cut or tokens is None or tokens < 2:
        return {}
    return {semconv.TPOT_US: (2 * decode + tokens - 1) // (2 * (tokens - 1))}


def _copied(given: Mapping[str, object], copy: Copy) -> Value | None:
    value = given.get(copy.attribute)
    if copy.pattern is not None:
        return value if isinstance(value, str) and _matches(copy.pattern, value) else None
    number = count(value)
    return number if number is not None and number >= copy.least else None


def _ending(row: Row, span: SpanRecord) -> Found:
    """Failures first: a finish reason says nothing of an error that came after it."""
    for verdict in row.verdicts:
        if verdict.outcome is not Outcome.OK and (told := _told(verdict, span)) is not None:
            return _failed(verdict.outcome, verdict.error_type or told)
    if span.status == "error":
        return _failed(Outcome.ERROR, UNKNOWN)
    for verdict in row.verdicts:
        if verdict.outcome is Outcome.OK and _told(verdict, span) is not None:
            reason = {} if verdict.reason is None else {semconv.FINISH_REASONS: (verdict.reason,)}
            return {semconv.OUTCOME: Outcome.OK.value, **reason}
    return {} if row.outcome is None else {semconv.OUTCOME: row.outcome.value}


def _failed(outcome: Outcome, error_type: str) -> Found:
    return {semconv.OUTCOME: outcome.value, semconv.ERROR_TYPE: error_type}


def _told(verdict: Verdict, span: SpanRecord) -> str | None:
    value = span.attributes.get(verdict.attribute)
    if verdict.names_error and not isinstance(value, str):
        return None
    text = _text(value)
    return text if _matches(verdict.pattern, text) else None


def _text(value: object) -> str | None:
    """A text, a truth value or a list of texts as the Collector writes them."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return json.dumps(list(value), separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else None


def _reasons(given: Mapping[str, object]) -> Found:
    """Finish reasons that were written as JSON, as the list that they are."""
    value = given.get(semconv.FINISH_REASONS)
    if not isinstance(value, str) or not _matches(REASONS, value):
        return {}
    return {semconv.FINISH_REASONS: tuple(json.loads(value))}


def _is_sound(span: SpanRecord) -> bool:
    instants = is_instant(span.start_ns) and is_instant(span.end_ns)
    return instants and span.start_ns <= span.end_ns and _e2e(span) <= LONGEST_US


def _e2e(span: SpanRecord) -> int:
    """A span's length: both instants in whole microseconds, and then subtracted."""
    return (span.end_ns + 500) // 1000 - (span.start_ns + 500) // 1000


def _us(given: Mapping[str, object], time: Time) -> int | None:
    value = given.get(time.attribute)
    if time.unit is Unit.SECONDS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return int(value * 1e6 + 0.5) if 0 <= value <= LONGEST_US // 1_000_000 else None
    if not isinstance(value, str) or not _matches(time.unit.value, value):
        return None
    if time.unit is Unit.MILLISECONDS_TEXT:
        return int(float(value) * 1000.0 + 0.5)
    return (_ns(value) + 500) // 1000


def _ns(text: str) -> int:
    """Nanoseconds of a Rust duration; no digit of it is smaller than one."""
    unit = next(each for each in _NS if text.endswith(each))  # the longest that fits comes first
    whole, _, part = text.removesuffix(unit).partition(".")
    return int(whole) * _NS[unit] + (int(part) * _NS[unit] // 10 ** len(part) if part else 0)


def _matches(pattern: str, text: str | None) -> bool:
    return text is not None and re.fullmatch(pattern, text) is not None
