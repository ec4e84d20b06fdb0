"""The helpers that users test with: a clock moved by hand, and telemetry that stays in memory."""

from __future__ import annotations

import pytest
from opentelemetry import metrics, trace

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.testing import (
    START_MONOTONIC_NS,
    START_WALL_NS,
    CapturedTelemetry,
    ManualClock,
    captured_telemetry,
)
from tests.emit.builders import NAME, complete, generated, opened


class TestClock:
    """Both clocks of a process."""

    def test_stands_still(self, clock: ManualClock) -> None:
        """Until it is told."""
        assert (clock.wall_ns(), clock.monotonic_ns()) == (START_WALL_NS, START_MONOTONIC_NS)

    def test_time_passes_on_both(self, clock: ManualClock) -> None:
        """Seconds in, nanoseconds out."""
        clock.advance(1.5)
        assert (
            clock.wall_ns(),
            clock.monotonic_ns(),
        ) == (START_WALL_NS + 1_500_000_000, START_MONOTONIC_NS + 1_500_000_000)

    @pytest.mark.parametrize("seconds", [3600.0, -3600.0])
    def test_the_wall_steps_alone(self, clock: ManualClock, seconds: float) -> None:
        """Either way; no time passes."""
        clock.step_wall(seconds)
        assert (START_WALL_NS + round(seconds * 1e9), START_MONOTONIC_NS) == (
            clock.wall_ns(),
            clock.monotonic_ns(),
        )

    def test_time_does_not_go_back(self, clock: ManualClock) -> None:
        """A mistake in a test is told."""
        with pytest.raises(ValueError, match="step_wall"):
            clock.advance(-1)

    def test_serves_as_a_clock(self) -> None:
        """Where one of the library is wanted."""
        assert Anchor(10_000, 7) == Anchor.take(ManualClock(10_001, 7))


class TestCapture:
    """Spans and metrics of a test."""

    def test_one_span_by_name(self, captured: CapturedTelemetry) -> None:
        """The one that there is."""
        complete(opened(captured))
        assert [captured.span(NAME)] == captured.spans

    @pytest.mark.parametrize("count", [0, 2])
    def test_no_or_several_spans(self, captured: CapturedTelemetry, count: int) -> None:
        """The message says what there is instead."""
        for _ in range(count):
            complete(opened(captured))
        complete(opened(captured, model="other"))
        with pytest.raises(LookupError, match=rf"{count} spans are called 'chat tiny'.*other"):
            captured.span(NAME)

    def test_tree(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """By parents, siblings by start."""
        tracer = captured.telemetry.tracer
        with tracer.start_as_current_span("a"):
            with tracer.start_as_current_span("b"):
                clock.advance(1)
            with tracer.start_as_current_span("c"), tracer.start_as_current_span("d"):
                pass
        with tracer.start_as_current_span("e"):
            pass
        assert captured.tree() == ["a", "  b", "  c", "    d", "e"]

    def test_points(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """Counts since the start, however often they are read, with all their exemplars."""
        complete(generated(opened(captured), clock))
        first = captured.points(semconv.SERVER_DURATION)
        assert first == captured.points(semconv.SERVER_DURATION)
        complete(generated(opened(captured), clock))
        (point,) = captured.points(semconv.SERVER_DURATION)
        assert (2, pytest.approx(0.142), 2) == (point.count, point.sum, len(point.exemplars))
        assert sum(point.buckets) == 2
        assert len(point.buckets) == len(point.bounds) + 1

    def test_no_points(self, captured: CapturedTelemetry) -> None:
        """A metric that was never recorded has none."""
        assert captured.points(semconv.SERVER_DURATION) == []

    def test_apart_from_the_process(self) -> None:
        """Global providers are neither used nor set, and two captures are two."""
        before = trace.get_tracer_provider(), metrics.get_meter_provider()
        first, second = captured_telemetry(), captured_telemetry()
        complete(opened(first))
        assert (len(first.spans), len(second.spans)) == (1, 0)
        assert before == (trace.get_tracer_provider(), metrics.get_meter_provider())
