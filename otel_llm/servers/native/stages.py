"""Stages that an engine shows as spans of their own, found for the request that they belong to.

This needs the whole trace, which the Collector's `transform` processor never sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from otel_llm.analysis.spans import SpanRecord
from otel_llm.timeline import Phase

Key = tuple[str, str]
"""Trace and span id."""
_DEEPEST = 8
"""Spans between a stage and its request; SGLang has one or two."""


def stages_of(
    spans: Sequence[SpanRecord], phases: Mapping[Key, Phase], requests: Iterable[Key]
) -> dict[Key, dict[Phase, SpanRecord]]:
    """For each request the first span of each stage, which *phases* names by key.

    There may be several: one per worker, and again after a request was taken off and run anew.
    """
    wanted, by_key = set(requests), {key_of(each): each for each in spans}
    found: dict[Key, dict[Phase, SpanRecord]] = {}
    for key, phase in phases.items():
        request = next((each for each in _above(key, by_key) if each in wanted), None)
        if request is not None:
            stages, stage = found.setdefault(request, {}), by_key[key]
            first = stages.setdefault(phase, stage)
            stages[phase] = min(first, stage, key=lambda each: each.start_ns)
    return found


def key_of(span: SpanRecord) -> Key:
    """What tells a span from all others."""
    return span.trace_id, span.span_id


def _above(key: Key, by_key: Mapping[Key, SpanRecord]) -> Iterator[Key]:
    for _ in range(_DEEPEST):
        span = by_key.get(key)
        if span is None or span.parent_span_id is None:
            return
        key = (span.trace_id, span.parent_span_id)
        yield key
