"""The analysis as the one JSON object that scripts rely on; `report.schema.json` describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from otel_llm.analysis.breakdown import Analysis, Figures, PhaseFigures
from otel_llm.analysis.clocks import ClockOffset
from otel_llm.analysis.quantiles import Distribution
from otel_llm.analysis.requests import Request
from otel_llm.analysis.segments import placed

SCHEMA = 1
_NOTHING = {"p50": None, "p95": None, "p99": None, "mean": None, "n_eff": 0.0}


def as_object(analysis: Analysis) -> dict[str, Any]:
    """The report: seconds for latencies and phases, microseconds in `slowest[].phases`."""
    return {
        "schema": SCHEMA,
        "weighted": analysis.weighted,
        **_counts(analysis.all),
        "invalid": analysis.invalid,
        "incomplete": analysis.incomplete,
        **_times(analysis.all),
        "groups": {
            dimension: {value: _counts(each) | _times(each) for value, each in groups.items()}
            for dimension, groups in analysis.groups.items()
        },
        "slowest": [_slow(each) for each in analysis.slowest],
    }


def as_json(analysis: Analysis) -> str:
    """The report as JSON text; it is plain ASCII and holds no NaN."""
    return json.dumps(as_object(analysis), indent=2, allow_nan=False)


@cache
def schema() -> Mapping[str, Any]:
    """The JSON Schema (2020-12) of the report."""
    text = files("otel_llm.analysis").joinpath("report.schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _counts(figures: Figures) -> dict[str, Any]:
    return {
        "requests": figures.requests,
        "estimated_requests": figures.estimated,
        "outcomes": dict(figures.outcomes),
        "skewed": figures.skewed,
    }


def _times(figures: Figures) -> dict[str, Any]:
    return {
        "latency": {name: _distribution(each) for name, each in figures.latency.items()},
        "phases": {name: _phase(each) for name, each in figures.phases.items()},
    }


def _phase(figures: PhaseFigures) -> dict[str, Any]:
    return _distribution(figures.times) | {"share": figures.share}


def _distribution(found: Distribution | None) -> dict[str, Any]:
    if found is None:
        return dict(_NOTHING)
    told = {name: getattr(found, name) for name in _NOTHING}
    return told if found.p99_ci is None else told | {"p99_ci": list(found.p99_ci)}


def _slow(request: Request) -> dict[str, Any]:
    return {
        "trace_id": request.outermost.span.trace_id,
        "span_id": request.outermost.span.span_id,
        "model": request.model,
        "e2e": request.e2e_us / 1e6,
        "phases": [
            {"name": name, "start_us": start, "duration_us": us, "source": source and source.value}
            for name, start, us, source in placed(request.segments)
        ],
        "clocks": [_clock(each) for each in request.offsets],
    }


def _clock(offset: ClockOffset) -> dict[str, Any]:
    return {
        "side": offset.inner.side.value,
        "span_id": offset.inner.span.span_id,
        "offset_us": [offset.low_us, offset.high_us],
        "skewed": offset.skewed,
    }
