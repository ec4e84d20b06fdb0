"""Helpers for tests of code that is instrumented with otel_llm.

    captured = captured_telemetry()
    instrument(**captured.providers)
    ...  # requests
    assert captured.tree() == ["chat tiny", "  llm.decode", "  llm.delivery"]

The SDK is needed (`pip install 'otel-llm[otlp]'`) and imported when `captured_telemetry` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.telemetry import Telemetry
from otel_llm.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

START_WALL_NS = 1_764_460_800_000_000_000
"""Where a `ManualClock` stands at first: 2025-11-30T00:00:00Z."""
START_MONOTONIC_NS = 81_233_900_000_000


class ManualClock:
    """Both clocks of a process, moved by hand. Implements `otel_llm.clock.Clock`.

    Args:
        wall_ns: Nanoseconds since the Unix epoch at first.
        monotonic_ns: What the monotonic clock reads at first, nanoseconds.
    """

    def __init__(
        self, wall_ns: int = START_WALL_NS, monotonic_ns: int = START_MONOTONIC_NS
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds of the clock that never goes back."""
        return self._monotonic_ns

    def monotonic(self) -> float:
        """Seconds of the clock that never goes back."""
        return self._monotonic_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks; raises `ValueError` if *seconds* is negative."""
        if seconds < 0:
            raise ValueError("time does not go back; use step_wall to set the wall clock")
        self._wall_ns += round(seconds * 1e9)
        self._monotonic_ns += round(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or, if *seconds* is negative, back; no time passes."""
        self._wall_ns += round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One measurement kept as an example; the ids are None if no sampled span was active."""

    value: float
    trace_id: int | None
    span_id: int | None


@dataclass(frozen=True, slots=True)
class Point:
    """One series of a metric: its attributes and everything recorded since the start.

    `bounds` are the upper bounds of the buckets; there is one more count in `buckets`. Of a
    counter or a gauge `sum` is the value; it has no buckets, and `count` is 1.
    """

    attributes: Mapping[str, Any]
    count: int
    sum: float
    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    exemplars: tuple[Exemplar, ...] = ()


class Providers(TypedDict):
    """The providers of a capture, as keyword arguments of `otel_llm.instrument`."""

    tracer_provider: TracerProvider
    meter_provider: MeterProvider


@dataclass(frozen=True, slots=True)
class CapturedTelemetry:
    """Telemetry that stays in this process, and what came out of it."""

    telemetry: Telemetry
    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    _exporter: InMemorySpanExporter = field(repr=False)
    _reader: InMemoryMetricReader = field(repr=False)
    _points: dict[str, dict[frozenset[Any], Point]] = field(default_factory=dict, repr=False)

    @property
    def providers(self) -> Providers:
        """Keyword arguments for `otel_llm.instrument`."""
        return {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended and were sampled, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        """The one span called *name*; raises `LookupError` if there is none or several."""
        found = [each for each in self.spans if each.name == name]
        if len(found) != 1:
            names = sorted(each.name for each in self.spans)
            raise LookupError(f"{len(found)} spans are called {name!r}; the spans are {names}")
        return found[0]

    def tree(self) -> list[str]:
        """Names of all spans, two spaces deeper for each ancestor, siblings by start.

        A span whose parent was not captured counts as a root.
        """
        spans = sorted(self.spans, key=lambda span: (span.start_time or 0, span.end_time or 0))
        known = {_id(span) for span in spans}
        children: dict[int | None, list[ReadableSpan]] = {}
        for span in spans:
            parent = span.parent.span_id if span.parent else None
            children.setdefault(parent if parent in known else None, []).append(span)
        return _indented(children, None, "")

    def points(self, metric_name: str) -> list[Point]:
        """The series of *metric_name*; empty when nothing was recorded."""
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._read(metric)
        return list(self._points.get(metric_name, {}).values())

    def _read(self, metric: Any) -> None:
        """Take the counts as they are now; exemplars are given out by the SDK only once."""
        known = self._points.setdefault(metric.name, {})
        for each in metric.data.data_points:
            key = frozenset(each.attributes.items())
            earlier = known[key].exemplars if key in known else ()
            known[key] = _point(each, earlier)


def captured_telemetry(
    settings: EmitSettings | None = None,
    sampler: Sampler | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> CapturedTelemetry:
    """Telemetry on providers of its own, whose spans and metrics stay in memory.

    Global providers are neither read nor changed, and nothing runs when the process exits.

    Args:
        settings: How telemetry is written.
        sampler: A head sampler; every span is sampled by default.
        clock: A `ManualClock`, or the clocks of this process.

    Raises:
        MissingDependencyError: The SDK is not installed.
    """
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError:
        raise MissingDependencyError("opentelemetry-sdk", extra="otlp") from None
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(sampler=sampler or ALWAYS_ON, shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = Telemetry(tracers, meters, settings, clock=clock)
    return CapturedTelemetry(telemetry, tracers, meters, exporter, reader)


def _id(span: ReadableSpan) -> int | None:
    return span.context.span_id if span.context else None


def _indented(
    children: Mapping[int | None, list[ReadableSpan]], parent: int | None, indent: str
) -> list[str]:
    lines = []
    for span in children.get(parent, ()):
        lines.append(indent + span.name)
        lines.extend(_indented(children, _id(span), indent + "  "))
    return lines


def _point(point: Any, earlier: tuple[Exemplar, ...]) -> Point:
    exemplars = (Exemplar(each.value, each.trace_id, each.span_id) for each in point.exemplars)
    if not hasattr(point, "bucket_counts"):
        return Point(dict(point.attributes), 1, point.value, (), (), (*earlier, *exemplars))
    return Point(
        attributes=dict(point.attributes),
        count=point.count,
        sum=point.sum,
        bounds=tuple(point.explicit_bounds),
        buckets=tuple(point.bucket_counts),
        exemplars=(*earlier, *exemplars),
    )
