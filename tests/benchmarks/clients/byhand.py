"""The spans and records of one streamed request from constants, by SDK calls alone.

What a careful engineer would write who knows every value in advance. The constants are what ours
was seen to write for the same request, so that both always write the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from tests.benchmarks.clients.peers import Opened, OpenedLater, Peer, Pipeline

Written = dict[str, Any]
"""`spans`: name, kind, attributes, the request's first; `records`: histogram, attributes."""
AT_START = 6
"""Operation, provider, side, model, address and port are known when a request begins."""


def written(pipeline: Pipeline, request: Callable[[], None]) -> Written:
    """What one request writes into a pipeline in memory."""
    request()  # what is found out once about a server is known from now on
    pipeline.spans.clear()
    before = _recorded(pipeline)
    request()
    recorded = _recorded(pipeline) - before
    spans = sorted(pipeline.spans.get_finished_spans(), key=lambda span: span.parent is not None)
    return {
        "spans": [(span.name, span.kind.value, dict(span.attributes or {})) for span in spans],
        "records": [(name, dict(attributes)) for name, attributes in recorded.elements()],
    }


def _recorded(pipeline: Pipeline) -> Counter[tuple[str, tuple[tuple[str, Any], ...]]]:
    """How often each histogram was recorded with each set of attributes."""
    data = pipeline.reader.get_metrics_data()
    counts: Counter[tuple[str, tuple[tuple[str, Any], ...]]] = Counter()
    for resource in data.resource_metrics if data else ():
        for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
            for point in metric.data.data_points:
                if hasattr(point, "bucket_counts") and not metric.name.startswith("otel.sdk"):
                    counts[metric.name, tuple((point.attributes or {}).items())] += point.count
    return counts


class ByHand(Peer):
    """Wraps each call where it is made."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._tracer = pipeline.tracers.get_tracer("by hand")
        self._meter = pipeline.meters.get_meter("by hand")
        self._plans: dict[str, _Plan] = {}

    def learn(self, library: str, seen: Written) -> None:
        """Take the constants of one client's requests."""
        self._plans[library] = _Plan(seen, self._tracer, self._meter)

    def sync(self, library: str, call: Opened) -> Iterable[Any]:
        """The stream, stamped, between a span's start and end."""
        return self._sync(self._plans[library], call)

    async def later(self, library: str, call: OpenedLater) -> AsyncIterable[Any]:
        """The stream, stamped, between a span's start and end."""
        return self._later(self._plans[library], call)

    def _sync(self, plan: _Plan, call: Opened) -> Iterator[Any]:
        span, stamps, clock = plan.start(), [], time.monotonic_ns
        for chunk in call():
            stamps.append(clock())
            yield chunk
        plan.end(span)

    async def _later(self, plan: _Plan, call: OpenedLater) -> AsyncIterator[Any]:
        span, stamps, clock = plan.start(), [], time.monotonic_ns
        async for chunk in await call():
            stamps.append(clock())
            yield chunk
        plan.end(span)


class _Plan:
    """The calls for one request."""

    def __init__(self, seen: Written, tracer: Any, meter: Any) -> None:
        from opentelemetry.trace import SpanKind

        (self._name, kind, attributes), *self._phases = seen["spans"]
        self._kind = SpanKind(kind)
        known = list(attributes.items())
        self._first, self._last = dict(known[:AT_START]), dict(known[AT_START:])
        made = {name: meter.create_histogram(name) for name, _ in seen["records"]}
        self._records = [(made[name].record, attributes) for name, attributes in seen["records"]]
        self._start_span = tracer.start_span

    def start(self) -> Any:
        """The request span."""
        now = time.time_ns()
        return self._start_span(self._name, kind=self._kind, attributes=self._first, start_time=now)

    def end(self, span: Any) -> None:
        """The records, the summary, the phases, and the end."""
        from opentelemetry import trace

        context, now = trace.set_span_in_context(span), time.time_ns()
        for record, attributes in self._records:
            record(0.1, attributes, context)
        span.set_attributes(self._last)
        for name, _, attributes in self._phases:
            child = self._start_span(name, context, attributes=attributes, start_time=now)
            child.end(now + 1000)
        span.end(now)
