"""Histograms that are counted by us: what is read is what the SDK's would have shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, MetricsData
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_llm import semconv
from otel_llm._version import __version__
from otel_llm.export import tallies
from otel_llm.export.tallies import Tallies, by_default

NAME, BUCKETS = "gen_ai.server.request.duration", (0.5, 1.0, 2.0)
URL = semconv.V1_41.schema_url


def within(*, sampled: bool, span_id: int = 7) -> Context:
    """A context whose span is sampled or not."""
    span = SpanContext(5, span_id, is_remote=False, trace_flags=TraceFlags(int(sampled)))
    return trace.set_span_in_context(NonRecordingSpan(span), Context())


class Both:
    """The same records into the SDK and into ours."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        meter = self.meters.get_meter(semconv.SCOPE, __version__, URL)
        self.theirs = meter.create_histogram(
            NAME, "s", "How long.", explicit_bucket_boundaries_advisory=BUCKETS
        )
        self.tallies = Tallies()
        self.ours = self.tallies(NAME, "s", "How long.", BUCKETS, URL)

    def record(self, amount: float, attributes: Mapping[str, Any], context: Context) -> None:
        """One record."""
        self.theirs.record(amount, attributes, context)
        self.ours.record(amount, attributes, context)

    def read(self) -> tuple[list[HistogramDataPoint], list[HistogramDataPoint]]:
        """What both show, without times of their own."""
        data = self.reader.get_metrics_data()
        assert data is not None
        theirs = points(data)
        other = InMemoryMetricReader()
        MeterProvider([other]).get_meter("x").create_counter("y").add(1)
        mine = other.get_metrics_data()
        assert mine is not None
        self.tallies.join(mine)
        return timeless(theirs), timeless(points(mine))


def points(data: MetricsData) -> list[HistogramDataPoint]:
    """The points of the histogram."""
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == NAME
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    ]


def timeless(found: Iterable[HistogramDataPoint]) -> list[HistogramDataPoint]:
    """Points without the moments at which they were made and read."""
    return [
        replace(
            each,
            start_time_unix_nano=0,
            time_unix_nano=0,
            exemplars=[replace(one, time_unix_nano=0) for one in each.exemplars],
        )
        for each in found
    ]


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 20).map(lambda quarters: quarters / 4) | st.integers(0, 3),
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y"])),
        st.booleans(),
        st.integers(1, 9),
    ),
    min_size=1,
)


@given(RECORDS, RECORDS)
def test_as_the_sdk_has_it(first: list[Any], second: list[Any]) -> None:
    """Counts, sums, extremes and exemplars agree, at a first collection and at the next."""
    both = Both()
    for records in (first, second):
        for amount, attributes, sampled, span_id in records:
            both.record(amount, attributes, within(sampled=sampled, span_id=span_id))
        theirs, ours = both.read()
        assert theirs == ours


def test_an_order_of_attributes_is_none() -> None:
    """The same attributes in another order are the same point."""
    both = Both()
    for attributes in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}):
        both.record(1.0, attributes, within(sampled=False))
    assert [each.count for each in both.read()[1]] == [2]


def test_too_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of attributes beyond the limit share one point."""
    monkeypatch.setattr(tallies, "MOST_POINTS", 2)
    both = Both()
    for number in range(5):
        both.ours.record(1.0, {"a": str(number)}, within(sampled=False))
    both.theirs.record(1.0)
    found = both.read()[1]
    assert [each.count for each in found] == [1, 1, 3]
    assert found[-1].attributes == {"otel.metric.overflow": True}


def test_in_the_scope_of_the_sdk() -> None:
    """Where the SDK has collected something of the same scope, it becomes one."""
    both = Both()
    both.record(1.0, {}, within(sampled=False))
    data = both.reader.get_metrics_data()
    assert data is not None
    both.tallies.join(data)
    (scope,) = data.resource_metrics[0].scope_metrics
    assert [each.name for each in scope.metrics] == [NAME, NAME]


def test_nothing_counted_nothing_shown() -> None:
    """Without a record there is neither a metric nor a scope."""
    both = Both()
    both.theirs.record(1.0)
    assert both.read()[1] == []


def test_a_child_begins_at_nothing() -> None:
    """What the parent has counted is its own."""
    both = Both()
    both.record(1.0, {}, within(sampled=False))
    both.tallies.forget()
    assert both.read()[1] == []


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta", False),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Cumulative", True),
        (
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
            "base2_exponential_bucket_histogram",
            False,
        ),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "always_off", False),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "", True),
    ],
)
def test_other_kinds_are_the_sdks(name: str, value: str, wanted: bool) -> None:
    """Histograms of another form than the usual one are left to the SDK."""
    assert wanted is by_default({name: value})
