"""The integer summary of a timeline: one dict of attributes, set in one call."""

from __future__ import annotations

from otel_llm import semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.values import Value
from otel_llm.timeline import GapSummary, Phase, Side, Source, Timeline, Tokens

_GAP_NAMES = {
    True: (semconv.CHUNK_GAP_P50_US, semconv.CHUNK_GAP_P99_US, semconv.CHUNK_GAP_MAX_US),
    False: (semconv.ITL_P50_US, semconv.ITL_P99_US, semconv.ITL_MAX_US),
}
_SOURCE = {(phase, source): f"{phase}={source}" for phase in Phase for source in Source}
_PHASE_US = {phase: semconv.phase_us(phase) for phase in Phase}


def summary_attributes(timeline: Timeline, settings: EmitSettings) -> dict[str, Value]:
    """Every known number of *timeline* by its attribute; what is unknown is not in it."""
    found: dict[str, Value | None] = {
        semconv.OUTCOME: timeline.outcome.value,
        semconv.ERROR_TYPE: timeline.error_type,
        semconv.ENDED_IN: timeline.ended_in.value if timeline.ended_in else None,
        semconv.INCOMPLETE: True if timeline.incomplete else None,
        semconv.FINISH_REASONS: timeline.finish_reasons or None,
        semconv.E2E_US: timeline.e2e_us,
        semconv.UNACCOUNTED_US: timeline.unaccounted_us,
        semconv.TTFT_US: timeline.ttft_us,
        semconv.TPOT_US: timeline.tpot_us,
        semconv.TOKENS_PER_OUTPUT: timeline.tokens_per_output,
        semconv.PREEMPTIONS: timeline.preemptions,
        semconv.CONSUMER_STALL_US: timeline.consumer_stall_us,
    }
    _add_phases(found, timeline)
    _add_tokens(found, timeline.tokens, settings)
    if timeline.gaps is not None:
        _add_gaps(found, timeline.gaps, client=timeline.side is Side.CLIENT)
    for part, value in timeline.parts.items():
        found[semconv.part(part.value)] = value
    if settings.latency_aliases:
        _add_aliases(found, timeline)
    return {name: value for name, value in found.items() if value is not None}


def _add_phases(found: dict[str, Value | None], timeline: Timeline) -> None:
    sources = []
    for phase, _, duration_us, source, reported_us in timeline.phases:
        found[_PHASE_US[phase]] = duration_us
        sources.append(_SOURCE[phase, source])
        if reported_us is not None:
            found[semconv.reported_us(phase)] = reported_us
    found[semconv.SOURCES] = ";".join(sources) or None


def _add_tokens(found: dict[str, Value | None], tokens: Tokens, settings: EmitSettings) -> None:
    found[semconv.INPUT_TOKENS] = tokens.input
    found[semconv.OUTPUT_TOKENS] = tokens.output
    found[semconv.CACHE_READ_TOKENS] = tokens.cached
    found[settings.vocabulary.cache_write_tokens] = tokens.cache_written
    found[semconv.REASONING_TOKENS] = tokens.reasoning


def _add_gaps(found: dict[str, Value | None], gaps: GapSummary, *, client: bool) -> None:
    p50, p99, longest = _GAP_NAMES[client]
    found[p50], found[p99], found[longest] = gaps.p50_us, gaps.p99_us, gaps.max_us
    found[semconv.STALLS] = gaps.stalls
    found[semconv.STALL_US] = gaps.stall_us


def _add_aliases(found: dict[str, Value | None], timeline: Timeline) -> None:
    lengths: dict[str, int | None] = {"ttft": timeline.ttft_us, "e2e": timeline.e2e_us}
    lengths |= {each.phase.value: each.duration_us for each in timeline.phases}
    for name, attribute in semconv.LATENCY_ALIASES.items():
        us = lengths.get(name)
        found[attribute] = None if us is None else us / 1e6
