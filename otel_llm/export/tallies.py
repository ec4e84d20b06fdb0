"""Histograms that are counted here, and join what the SDK has when its reader collects.

The SDK checks, copies and hashes the attributes of every record anew, which takes nine tenths of
it. What is read is the same: cumulative points with explicit buckets, and as exemplars the latest
sampled span of each bucket since the last collection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as Points
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, get_current_span

from otel_llm import semconv
from otel_llm._version import __version__
from otel_llm.clock import SYSTEM_CLOCK

MOST_POINTS = 2000
"""Sets of attributes beyond these share one point, as in the SDK."""
_OVERFLOW = {"otel.metric.overflow": True}
_DEFAULTS = {
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "cumulative",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
    "OTEL_METRICS_EXEMPLAR_FILTER": "trace_based",
}


def by_default(environ: Mapping[str, str]) -> bool:
    """Whether histograms are wanted as they are counted here; for any other kind ask the SDK."""
    return all(
        environ.get(name, "").strip().lower() in {"", default}
        for name, default in _DEFAULTS.items()
    )


class Tallies:
    """The histograms of one meter provider."""

    def __init__(self) -> None:
        self._tallies: list[Tally] = []
        self._schema_url: str | None = None

    def __call__(
        self,
        name: str,
        unit: str,
        description: str,
        boundaries: Sequence[float],
        schema_url: str,
    ) -> Histogram:
        """A histogram with buckets up to and including each of *boundaries*."""
        tally = Tally(name, unit, description, boundaries)
        self._tallies.append(tally)
        self._schema_url = schema_url
        return tally

    def join(self, data: MetricsData) -> None:
        """Add what was counted to what the SDK has collected."""
        metrics = [metric for each in self._tallies if (metric := each.metric()) is not None]
        if not metrics:
            return
        scope = InstrumentationScope(semconv.SCOPE, __version__, self._schema_url)
        collected = data.resource_metrics[0].scope_metrics
        for each in collected:
            if each.scope == scope:
                each.metrics.extend(metrics)  # type: ignore[attr-defined]
                return
        collected.append(ScopeMetrics(scope, metrics, self._schema_url or ""))  # type: ignore[attr-defined]

    def forget(self) -> None:
        """Begin at nothing: in a forked child counts and locks are the parent's."""
        for each in self._tallies:
            each.forget()


class Tally(Histogram):
    """One histogram."""

    def __init__(self, name: str, unit: str, description: str, boundaries: Sequence[float]) -> None:
        self._name, self._unit, self._description = name, unit, description
        self._boundaries = tuple(boundaries)
        self.forget()

    def forget(self) -> None:
        """Begin at nothing."""
        self._lock = Lock()
        self._points: dict[frozenset[tuple[str, Any]], _Point] = {}

    def record(
        self,
        amount: float,
        attributes: Mapping[str, Any] | None = None,
        context: Context | None = None,
    ) -> None:
        """Count *amount*, which is neither negative nor infinite."""
        attributes = attributes or {}
        key = frozenset(attributes.items())
        bucket = bisect_left(self._boundaries, amount)
        span = get_current_span(context).get_span_context()
        with self._lock:
            point = self._points.get(key) or self._new_point(key, attributes)
            point.counts[bucket] += 1
            point.sum += amount
            point.min = min(point.min, amount)
            point.max = max(point.max, amount)
            if span.trace_flags.sampled and span.is_valid:
                point.latest[bucket] = amount, SYSTEM_CLOCK.wall_ns(), span, attributes

    def _new_point(self, key: frozenset[tuple[str, Any]], attributes: Mapping[str, Any]) -> _Point:
        if len(self._points) >= MOST_POINTS:
            key, attributes = frozenset(_OVERFLOW.items()), _OVERFLOW
        fresh = _Point(attributes, len(self._boundaries) + 1)
        return self._points.setdefault(key, fresh)

    def metric(self) -> Metric | None:
        """Everything counted so far; None if that is nothing."""
        now_ns = SYSTEM_CLOCK.wall_ns()
        with self._lock:
            points = [each.read(self._boundaries, now_ns) for each in self._points.values()]
        if not points:
            return None
        data = Points(points, AggregationTemporality.CUMULATIVE)
        return Metric(self._name, self._description, self._unit, data)


class _Point:
    """The counts of one set of attributes."""

    __slots__ = ("_attributes", "_start_ns", "counts", "latest", "max", "min", "sum")

    def __init__(self, attributes: Mapping[str, Any], buckets: int) -> None:
        self._attributes = dict(attributes)
        self._start_ns = SYSTEM_CLOCK.wall_ns()
        self.counts = [0] * buckets
        self.sum, self.min, self.max = 0.0, float("inf"), 0.0
        self.latest: dict[int, tuple[float, int, SpanContext, Mapping[str, Any]]] = {}
        """Of each bucket the latest record of a sampled span: amount, time, span, attributes."""

    def read(self, boundaries: tuple[float, ...], now_ns: int) -> HistogramDataPoint:
        """Everything counted; what becomes exemplars is forgotten."""
        latest, self.latest = self.latest, {}
        return HistogramDataPoint(
            attributes=self._attributes,
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
            count=sum(self.counts),
            sum=self.sum,
            bucket_counts=tuple(self.counts),
            explicit_bounds=boundaries,
            min=self.min,
            max=self.max,
            exemplars=[self._exemplar(*latest[bucket]) for bucket in sorted(latest)],
        )

    def _exemplar(
        self, amount: float, at_ns: int, span: SpanContext, attributes: Mapping[str, Any]
    ) -> Exemplar:
        more = {key: each for key, each in attributes.items() if key not in self._attributes}
        return Exemplar(more if attributes else None, amount, at_ns, span.span_id, span.trace_id)
