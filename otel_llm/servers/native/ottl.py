"""The rows as configuration of the Collector's `transform` processor.

It edits spans and makes none, and sees one at a time: the statements do to a span what
`read.summary_of` says of it.
Values that are needed more than once are kept in the processor's cache, which lasts for one span.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from otel_llm import semconv
from otel_llm.clock import YEAR_2000_NS, YEAR_2200_NS
from otel_llm.servers.native.rows import REASONS, ROWS, Copy, Row, Stretch, Time, Unit, Verdict
from otel_llm.timeline import Outcome, Phase, Side, Source
from otel_llm.timeline.counts import MOST_TOKENS
from otel_llm.timeline.layout import LONGEST_US
from otel_llm.timeline.outcome import UNKNOWN

NAME = "transform/native_spans"
COMMAND = "python -m otel_llm.servers.native"
_HEAD = f"""\
# Engines' own spans in otel_llm's words: vLLM, SGLang, TGI, TensorRT-LLM, Dynamo.
# Made by `{COMMAND}`; see docs/native-spans.md.
# Put `{NAME}` into a traces pipeline, before any sampling.
"""
_START, _END = "span.start_time_unix_nano", "span.end_time_unix_nano"
_SCOPE = "instrumentation_scope.name"


def processor() -> dict[str, Any]:
    """The settings of the processor."""
    statements = []
    for row in ROWS:
        statements += [_group(_is_request(row), list(_request(row)))]
        statements += [_group(_is_stage(row, name), _stage(phase)) for name, phase in row.stages]
    return {"error_mode": "ignore", "trace_statements": statements}


def as_yaml() -> str:
    """A configuration file of the Collector with the processor and nothing else."""
    lines = [_HEAD.rstrip(), "processors:", f"  {NAME}:", "    error_mode: ignore"]
    lines.append("    trace_statements:")
    for group in processor()["trace_statements"]:
        lines += ["      - conditions:", *_items(group["conditions"])]
        lines += ["        statements:", *_items(group["statements"])]
    return "\n".join(lines) + "\n"


def _items(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        quoted = text.replace("'", "''")
        yield f"          - '{quoted}'"


def _group(condition: str, statements: list[str]) -> dict[str, Any]:
    return {"conditions": [condition], "statements": statements}


def _is_request(row: Row) -> str:
    return _all(
        _matches("span.name", row.name),
        *([] if row.scope is None else [_matches(_SCOPE, row.scope)]),
        f"{_attribute(row.marker)} != nil",
        *_sound(),
    )


def _is_stage(row: Row, name: str) -> str:
    scope = [] if row.scope is None else [_matches(_SCOPE, row.scope)]
    return _all(f"span.name == {_text(name)}", *scope, *_sound())


def _sound() -> tuple[str, ...]:
    """Nobody has given the span a side, and its times can be true."""
    return (
        f"{_attribute(semconv.SIDE)} == nil",
        f"{_START} >= {YEAR_2000_NS}",
        f"{_START} <= {YEAR_2200_NS}",
        f"{_END} >= {YEAR_2000_NS}",
        f"{_END} <= {YEAR_2200_NS}",
        f"{_START} <= {_END}",
        f"{_length()} <= {LONGEST_US}",
    )


def _length() -> str:
    return f"({_END} + 500) / 1000 - ({_START} + 500) / 1000"


def _stage(phase: Phase) -> list[str]:
    return [
        _set(_attribute(semconv.phase_us(phase)), _length()),
        _set(_attribute(semconv.PHASE_SOURCE), _text(Source.REPORTED)),
    ]


def _request(row: Row) -> Iterator[str]:
    yield _set(_attribute(semconv.SIDE), _text(Side.ENGINE))
    yield _set(_attribute(semconv.PROVIDER), _text(row.engine), _absent(semconv.PROVIDER))
    yield _set(_attribute(semconv.E2E_US), _length())
    yield _set(_cache("room"), _length())
    for time in _times(row):
        yield _set(_cache(time.attribute), _us(time), _usable(time))
    for stretch in row.phases:
        yield from _phase(stretch)
    yield _set(_attribute(semconv.UNACCOUNTED_US), _cache("room"))
    sources = f'TrimPrefix({_cache("sources")}, ";")'
    yield _set(_attribute(semconv.SOURCES), sources, f"{_cache('sources')} != nil")
    yield from _within(row)
    for named in row.named:
        where = _all(_matches("span.name", named.pattern), *_free(named.target))
        yield _set(_attribute(named.target), _text(named.value), where)
    for copy in row.copies:
        yield _copied(copy)
    yield from _ending(row)
    yield from _tpot(row)
    reasons = _attribute(semconv.FINISH_REASONS)
    is_json = _all(f"IsString({reasons})", _matches(reasons, REASONS))
    yield _set(reasons, f"ParseJSON({reasons})", is_json)


def _times(row: Row) -> tuple[Time, ...]:
    """Every attribute of the row that holds a time, once."""
    stretches = [each for _, time, less in row.phases for each in (time, less)]
    found = [row.ttft, *stretches, *(time for _, time in row.values)]
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _phase(stretch: Stretch) -> Iterator[str]:
    """The phase cut to the room that is left, which then is less."""
    phase, time, without = stretch
    us, room, source, sources = (_cache(each) for each in (phase, "room", "source", "sources"))
    known, value = f"{_cache(time.attribute)} != nil", _cache(time.attribute)
    plain = Source.REPORTED
    if without is not None:
        less = _cache(without.attribute)
        known = _all(known, f"{less} != nil", f"{value} >= {less}")
        value, plain = f"{value} - {less}", Source.DERIVED
    yield _set(us, value, known)
    is_known, is_long = f"{us} != nil", _all(f"{us} != nil", f"{us} > {room}")
    yield _set(source, _text(plain))
    yield _set(source, _text(Source.ESTIMATED), is_long)
    yield _set(_attribute(semconv.reported_us(phase)), us, is_long)
    yield _set(_cache(f"{phase} cut"), "true", is_long)
    yield _set(us, room, is_long)
    yield _set(room, f"{room} - {us}", is_known)
    yield _set(_attribute(semconv.phase_us(phase)), us, is_known)
    yield _set(sources, '""', _all(is_known, f"{sources} == nil"))
    yield _set(sources, f'Concat([{sources}, ";{phase}=", {source}], "")', is_known)


def _within(row: Row) -> Iterator[str]:
    e2e = _attribute(semconv.E2E_US)
    if row.ttft is not None:
        us = _cache(row.ttft.attribute)
        where = _all(f"{us} != nil", f"{us} > 0", f"{us} <= {e2e}")
        yield _set(_attribute(semconv.TTFT_US), us, where)
    for name, time in row.values:
        us = _cache(time.attribute)
        yield _set(_attribute(name), us, _all(f"{us} != nil", f"{us} <= {e2e}"))


def _copied(copy: Copy) -> str:
    source, target, free = _attribute(copy.attribute), _attribute(copy.target), _free(copy.target)
    if copy.pattern is not None:
        return _set(
            target, source, _all(f"IsString({source})", _matches(source, copy.pattern), *free)
        )
    return _set(target, source, _all(_is_count(source, copy.least), *free))


def _is_count(path: str, least: int) -> str:
    return _all(f"IsInt({path})", f"{path} >= {least}", f"{path} <= {MOST_TOKENS}")


def _ending(row: Row) -> Iterator[str]:
    """Failures first, each only if none before it has said how the request ended."""
    outcome, error = _cache("outcome"), _cache("error")
    open_ = f"{outcome} == nil"
    for verdict in (each for each in row.verdicts if each.outcome is not Outcome.OK):
        where = _all(open_, _says(verdict))
        told = _attribute(verdict.attribute)
        yield _set(error, _text(verdict.error_type) if verdict.error_type else told, where)
        yield _set(outcome, _text(verdict.outcome), where)
    failed = _all(open_, "span.status.code == STATUS_CODE_ERROR")
    yield _set(error, _text(UNKNOWN), failed)
    yield _set(outcome, _text(Outcome.ERROR), failed)
    for verdict in (each for each in row.verdicts if each.outcome is Outcome.OK):
        where = _all(open_, _says(verdict))
        if verdict.reason is not None:
            reasons = _all(where, _absent(semconv.FINISH_REASONS))
            yield _set(_attribute(semconv.FINISH_REASONS), f"[{_text(verdict.reason)}]", reasons)
        yield _set(outcome, _text(verdict.outcome), where)
    if row.outcome is not None:
        yield _set(outcome, _text(row.outcome), open_)
    yield _set(_attribute(semconv.OUTCOME), outcome, f"{outcome} != nil")
    unsaid = _all(f"{error} != nil", _absent(semconv.ERROR_TYPE))
    yield _set(_attribute(semconv.ERROR_TYPE), error, unsaid)


def _says(verdict: Verdict) -> str:
    told = _attribute(verdict.attribute)
    matches = _matches(told, verdict.pattern)
    is_text = [f"IsString({told})"] if verdict.names_error else []
    return _all(f"{told} != nil", *is_text, matches)


def _tpot(row: Row) -> Iterator[str]:
    if Phase.DECODE not in {each.phase for each in row.phases}:
        return
    decode, tokens = _cache(Phase.DECODE), _attribute(semconv.OUTPUT_TOKENS)
    one = _absent(semconv.CHOICE_COUNT)
    yield _set(
        _attribute(semconv.TPOT_US),
        f"(2 * {decode} + {tokens} - 1) / (2 * ({tokens} - 1))",
        _all(
            one, f"{decode} != nil", f"{_cache(f'{Phase.DECODE} cut')} == nil", _is_count(tokens, 2)
        ),
    )


def _usable(time: Time) -> str:
    path = _attribute(time.attribute)
    if time.unit is Unit.SECONDS:
        number = f"(IsDouble({path}) or IsInt({path}))"
        return _all(number, f"{path} >= 0", f"{path} <= {LONGEST_US // 1_000_000}")
    return _all(f"IsString({path})", _matches(path, time.unit.value))


def _us(time: Time) -> str:
    path = _attribute(time.attribute)
    if time.unit is Unit.SECONDS:
        return f"Int({path} * 1000000.0 + 0.5)"
    if time.unit is Unit.MILLISECONDS_TEXT:
        return f"Int(Double({path}) * 1000.0 + 0.5)"
    return f"(Nanoseconds(Duration({path})) + 500) / 1000"


def _set(target: str, value: str, where: str = "") -> str:
    return f"set({target}, {value})" + (f" where {where}" if where else "")


def _all(*conditions: str) -> str:
    return " and ".join(conditions)


def _free(target: str) -> tuple[str, ...]:
    """What a span says itself under a name of the conventions stays; ours are ours to write."""
    return () if target.startswith(semconv.OURS) else (_absent(target),)


def _absent(name: str) -> str:
    return f"{_attribute(name)} == nil"


def _matches(path: str, pattern: str) -> str:
    return f"IsMatch({path}, {_text(f'^({pattern})$')})"


def _attribute(name: str) -> str:
    return f"span.attributes[{_text(name)}]"


def _cache(name: str) -> str:
    return f"span.cache[{_text(name)}]"


def _text(value: str) -> str:
    return json.dumps(str(value), ensure_ascii=False)
