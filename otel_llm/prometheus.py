"""Metrics for a Prometheus scrape: joined to a `prometheus_client` registry, or served.

    reader = prometheus_reader()               # shows in the process's own /metrics
    MeterProvider([reader])

Names, units, labels and `target_info` are those of opentelemetry-exporter-prometheus:
`gen_ai.server.request.duration` in `s` becomes `gen_ai_server_request_duration_seconds`, counters
end in `_total`, and every series has `otel_scope_name`, `otel_scope_version` and
`otel_scope_schema_url`. Buckets and counters also carry their latest exemplar with `trace_id` and
`span_id`; only the OpenMetrics format shows it. Exponential histograms are left out.

vLLM's `/metrics` shows what is registered here, as text without exemplars; scrape `/metrics/`,
with the slash, for OpenMetrics. With several API servers vLLM sets `PROMETHEUS_MULTIPROC_DIR`,
and its `/metrics` then shows only what prometheus_client's own metrics wrote there: use a
registry of one's own and `serve` on a port for each process, or OTLP.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from otel_llm.errors import ConfigurationError, MissingDependencyError
from otel_llm.export import forks
from otel_llm.guard import guard
from otel_llm.scrape import MetricsServer, serve

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        Exemplar,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
except ImportError:
    raise MissingDependencyError("prometheus-client", extra="prometheus") from None
try:
    from opentelemetry.sdk.metrics.export import (
        Gauge,
        Histogram,
        HistogramDataPoint,
        MetricReader,
        MetricsData,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as SdkMetric
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from otel_llm.export.metrics import forget_counts
except ImportError:
    raise MissingDependencyError("opentelemetry-sdk", extra="otlp") from None

__all__ = ["MetricsServer", "PrometheusReader", "prometheus_reader", "serve"]
_log = logging.getLogger("otel_llm")
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
LONGEST_EXEMPLAR = 128
"""Most characters in the names and values of one exemplar's labels, as OpenMetrics says."""
_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds",
    "us": "microseconds", "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes",
    "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes", "KBy": "kilobytes",
    "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes", "m": "meters", "V": "volts",
    "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz",
    "1": "", "%": "percent",
}  # fmt: skip
_PER = {
    "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year",
}  # fmt: skip
_ANNOTATION = re.compile(r"{[!-~]*}")
_NOT_IN_NAMES = re.compile(r"^[0-9]|[^a-zA-Z0-9:]+")
_NOT_IN_LABELS = re.compile(r"^[0-9]|[^a-zA-Z0-9]+")
_Labels = dict[str, str]
_Exemplars = dict[tuple[str, frozenset[tuple[str, str]], str], Exemplar]
_readers: WeakSet[PrometheusReader] = WeakSet()


def prometheus_reader(registry: CollectorRegistry | None = None) -> MetricReader:
    """A reader for one `MeterProvider`, whose metrics show in *registry* until it is shut down.

    Args:
        registry: `prometheus_client.REGISTRY` by default, which vLLM and most others serve.

    Raises:
        ConfigurationError: Another reader of ours is there; series would show twice, and
            Prometheus would refuse the whole scrape.
    """
    registry = REGISTRY if registry is None else registry
    if any(each.registry is registry for each in _readers):
        raise ConfigurationError(
            "metrics of another meter provider show in this Prometheus registry already; shut "
            "that provider down first, or pass a registry of its own"
        )
    if registry is REGISTRY and os.environ.get(MULTIPROCESS):
        _log.warning(
            "%s is set: a multiprocess /metrics (vLLM with several API servers) will not show "
            "metrics of otel_llm; serve them on a port for each process, or export them by OTLP",
            MULTIPROCESS,
        )
    return PrometheusReader(registry)


class PrometheusReader(MetricReader):
    """Collects when the registry is scraped; cumulative, as Prometheus needs it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._received = threading.local()
        self._latest: _Exemplars = {}
        self.registry = registry
        self._collector = _Collector(self)
        registry.register(self._collector)
        _readers.add(self)
        forks.follow(self)

    def after_fork(self) -> None:
        """Begin at zero in a child: what was counted until now is the parent's."""
        self._latest = {}
        self._received = threading.local()
        forget_counts(self)

    def families(self) -> Iterator[Metric]:
        """Everything recorded so far, as Prometheus sees it."""
        self._received.data = None
        self.collect()
        data: MetricsData | None = self._received.data
        if data is not None:
            with_target = not self.registry.get_target_info()
            yield from _Translation(self._latest).families(data, with_target=with_target)

    def shutdown(self, timeout_millis: float = 30_000, **_kwargs: Any) -> None:  # noqa: ARG002
        """Take the metrics out of the registry; a second call does nothing."""
        if self in _readers:
            _readers.discard(self)
            self.registry.unregister(self._collector)

    def _receive_metrics(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,  # noqa: ARG002
        **_kwargs: Any,
    ) -> None:
        # Called by `collect` in the same thread, so that scrapes at once need no lock.
        self._received.data = metrics_data


class _Collector:
    """What the registry asks. A failure of ours must not cost the others their scrape."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def describe(self) -> list[Metric]:
        """Nothing: names are not known before something was recorded."""
        return []

    def collect(self) -> list[Metric]:
        """All families, or none if they cannot be made."""
        with guard("prometheus.collect"):
            return list(self._reader.families())
        return []


class _Translation:
    """One scrape: metrics of the SDK to families of Prometheus."""

    def __init__(self, latest: _Exemplars) -> None:
        self._latest = latest
        self._families: dict[str, Metric] = {}
        self._seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()

    def families(self, data: MetricsData, *, with_target: bool) -> Iterable[Metric]:
        """Each family once, with the series of all scopes."""
        for of_resource in data.resource_metrics:
            attributes = of_resource.resource.attributes
            if with_target and attributes:
                self._add(InfoMetricFamily("target", "Target metadata", _labels(attributes)), {})
            for scope in of_resource.scope_metrics:
                of_scope = _of_scope(scope.scope)
                for metric in scope.metrics:
                    self._translate(metric, of_scope)
        return self._families.values()

    def _translate(self, metric: SdkMetric, of_scope: Mapping[str, Any]) -> None:
        if not isinstance(metric.data, Sum | Gauge | Histogram):
            _leave_out(metric.name, "its kind has no form here")
            return
        for point in metric.data.data_points:
            labels = _labels(point.attributes or {}) | _labels(of_scope)
            if isinstance(point, HistogramDataPoint):
                labels.pop("le", None)
                self._add(self._histogram(metric, point, labels), labels)
            elif isinstance(metric.data, Sum) and metric.data.is_monotonic:
                self._add(self._counter(metric, point, labels), labels)
            else:
                gauge = GaugeMetricFamily(
                    *_header(metric), labels=list(labels), unit=_unit(metric.unit)
                )
                gauge.add_metric(list(labels.values()), point.value)
                self._add(gauge, labels)

    def _counter(
        self, metric: SdkMetric, point: NumberDataPoint, labels: _Labels
    ) -> CounterMetricFamily:
        counter = CounterMetricFamily(
            *_header(metric), labels=list(labels), unit=_unit(metric.unit)
        )
        exemplar = self._exemplar(counter.name, labels, "", point.exemplars)
        counter.add_metric(list(labels.values()), point.value, exemplar=exemplar)
        return counter

    def _histogram(
        self, metric: SdkMetric, point: HistogramDataPoint, labels: _Labels
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            *_header(metric), labels=list(labels), unit=_unit(metric.unit)
        )
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        total, lower = 0, float("-inf")
        bounds = (*map(float, point.explicit_bounds), float("inf"))
        for bound, count in zip(bounds, point.bucket_counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else str(bound)
            within = [each for each in point.exemplars if lower < each.value <= bound]
            exemplar = self._exemplar(family.name, labels, le, within)
            buckets.append((le, total, exemplar) if exemplar else (le, total))
            lower = bound
        family.add_metric(list(labels.values()), buckets, point.sum)
        return family

    def _exemplar(
        self, name: str, labels: _Labels, le: str, found: Iterable[Any]
    ) -> Exemplar | None:
        """The largest exemplar of a bucket, or what it had before: the SDK gives each out once."""
        key = name, frozenset(labels.items()), le
        traced = [each for each in found if each.trace_id and each.span_id]
        if traced:
            self._latest[key] = _exemplar(max(traced, key=lambda each: each.value))
        return self._latest.get(key)

    def _add(self, made: Metric, labels: _Labels) -> None:
        """Add the series of *made*, unless Prometheus would refuse the scrape for it."""
        family = self._families.setdefault(made.name, made)
        series = made.name, frozenset(labels.items())
        if family.type != made.type:
            _leave_out(made.name, f"the name is taken by a {family.type}")
        elif series in self._seen:
            _leave_out(made.name, "a series with the same labels is there")
        else:
            self._seen.add(series)
            if family is not made:
                family.samples.extend(made.samples)


def _exemplar(found: Any) -> Exemplar:
    """With trace and span, and with further attributes if all of them fit."""
    traced = {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
    labels = _labels(found.filtered_attributes or {}) | traced
    if sum(len(name) + len(value) for name, value in labels.items()) > LONGEST_EXEMPLAR:
        labels = traced
    return Exemplar(labels, float(found.value), found.time_unix_nano / 1e9)


def _header(metric: SdkMetric) -> tuple[str, str]:
    """Name, without the unit, and help."""
    return _NOT_IN_NAMES.sub("_", metric.name), metric.description or ""


def _unit(unit: str | None) -> str:
    """The word for a unit that a name ends with; empty if there is none."""
    plain = _ANNOTATION.sub("", unit or "")
    if plain in _UNITS:
        return _UNITS[plain]
    above, slash, below = (_NOT_IN_NAMES.sub("_", part) for part in plain.partition("/"))
    if slash and below:
        words = (_UNITS.get(above, above), "per", _PER.get(below, below))
        return "_".join(word for word in words if word)
    return _NOT_IN_NAMES.sub("_", plain).strip("_")


def _of_scope(scope: InstrumentationScope) -> dict[str, Any]:
    further = {f"otel_scope_{name}": value for name, value in (scope.attributes or {}).items()}
    known = {
        "otel_scope_name": scope.name,
        "otel_scope_version": scope.version,
        "otel_scope_schema_url": scope.schema_url,
    }
    return further | {name: value for name, value in known.items() if value}


def _labels(attributes: Mapping[str, Any]) -> _Labels:
    """Labels; values of attributes whose names become the same are joined, as specified."""
    labels: _Labels = {}
    for name in sorted(attributes):
        label, value = _NOT_IN_LABELS.sub("_", name), attributes[name]
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        labels[label] = f"{labels[label]};{text}" if label in labels else text
    return labels


_told: set[tuple[str, str]] = set()


def _leave_out(name: str, why: str) -> None:
    if (name, why) not in _told:
        _told.add((name, why))
        _log.warning("metric %s is left out of the Prometheus scrape: %s", name, why)
