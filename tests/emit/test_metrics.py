"""Histograms of every request: names, buckets, attributes and exemplars."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_llm import semconv
from otel_llm.emit.metrics import MOST_MODELS
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.telemetry import Telemetry
from otel_llm.semconv import GENAI_MAIN, V1_41, Vocabulary
from otel_llm.testing import CapturedTelemetry, ManualClock, Point, captured_telemetry
from otel_llm.timeline import Mark, Outcome, Side
from tests.emit.builders import INFO, NAME, Spy, complete, generated, opened

DURATION = "gen_ai.server.request.duration"
TTFT = "gen_ai.server.time_to_first_token"
TPOT = "gen_ai.server.time_per_output_token"
PHASE = "otel_llm.phase.duration"
ALL = (DURATION, TTFT, TPOT, PHASE)
MODEL = "gen_ai.request.model"
SECOND_BOUNDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96]
SECOND_BOUNDS += [81.92]
FIRST_BOUNDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0]
FIRST_BOUNDS += [7.5, 10.0]
TOKEN_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]


def only(captured: CapturedTelemetry, name: str) -> Point:
    """The one series of a metric."""
    (point,) = captured.points(name)
    return point


def models(captured: CapturedTelemetry) -> dict[str, int]:
    """How often each model was recorded."""
    return {each.attributes[MODEL]: each.count for each in captured.points(DURATION)}


@pytest.fixture
def answered(captured: CapturedTelemetry, clock: ManualClock) -> CapturedTelemetry:
    """One reply that was streamed to its end."""
    complete(generated(opened(captured), clock))
    return captured


class TestServer:
    """The conventions' server metrics."""

    @pytest.mark.parametrize(
        ("name", "seconds", "bounds"),
        [
            (DURATION, 0.071, SECOND_BOUNDS),
            (TTFT, 0.030, FIRST_BOUNDS),
            (TPOT, 0.010, TOKEN_BOUNDS),
        ],
    )
    def test_value_and_buckets(
        self, answered: CapturedTelemetry, name: str, seconds: float, bounds: list[float]
    ) -> None:
        """One record per request, in seconds, in the buckets that the conventions name."""
        point = only(answered, name)
        assert (1, pytest.approx(seconds)) == (point.count, point.sum)
        assert pytest.approx(bounds) == list(point.bounds)

    def test_attributes(self, answered: CapturedTelemetry) -> None:
        """Operation, provider and model; nothing of a failure."""
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "demo",
            "gen_ai.request.model": "tiny",
        }
        assert [expected] * 3 == [only(answered, name).attributes for name in ALL[:3]]

    def test_phases(self, answered: CapturedTelemetry) -> None:
        """Each phase is a series, with buckets from half a millisecond up."""
        points = {each.attributes["phase"]: each for each in answered.points(PHASE)}
        expected = {
            "preprocess": 0.0,
            "queue": 0.010,
            "prefill": 0.020,
            "first_token": 0.005,
            "decode": 0.035,
            "delivery": 0.001,
        }
        assert pytest.approx(expected) == {name: each.sum for name, each in points.items()}
        assert points["queue"].bounds[0] == 0.0005

    def test_an_unknown_model_is_no_attribute(self, captured: CapturedTelemetry) -> None:
        """Neither empty nor `None`."""
        complete(opened(captured, model=None))
        assert MODEL not in only(captured, DURATION).attributes


class TestFailures:
    """What a request that did not end well is counted in."""

    @pytest.mark.parametrize(
        ("outcome", "error_type"),
        [(Outcome.ERROR, "boom"), (Outcome.CANCELLED, "CancelledError"), (Outcome.REJECTED, "429")],
    )
    def test_the_duration_says_why(
        self, captured: CapturedTelemetry, outcome: Outcome, error_type: str
    ) -> None:
        """The same `error.type` as on the span."""
        live = opened(captured)
        live.recorder.fail(outcome, error_type)
        live.finish()
        assert error_type == only(captured, DURATION).attributes[semconv.ERROR_TYPE]

    def test_no_latency_of_failures(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """Time to first token and per token are those of successes."""
        live = generated(opened(captured), clock)
        live.recorder.fail(Outcome.ERROR, "boom")
        live.finish()
        assert [*captured.points(TTFT), *captured.points(TPOT)] == []

    def test_an_abandoned_request_has_no_error_type(self, captured: CapturedTelemetry) -> None:
        """The reader left; nothing failed."""
        opened(captured).abandon()
        assert semconv.ERROR_TYPE not in only(captured, DURATION).attributes

    def test_phases_of_failures_count(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """A queue that was waited in was waited in."""
        live = generated(opened(captured), clock)
        live.recorder.fail(Outcome.ERROR, "boom")
        live.finish()
        assert "queue" in {each.attributes["phase"] for each in captured.points(PHASE)}


class TestSampling:
    """Metrics know every request, kept or not."""

    def test_recorded_when_sampled_out(self, clock: ManualClock) -> None:
        """No span, the same numbers."""
        captured = captured_telemetry(sampler=ALWAYS_OFF, clock=clock)
        complete(generated(opened(captured), clock))
        assert captured.spans == []
        assert [only(captured, name).count for name in ALL[:3]] == [1, 1, 1]

    def test_no_phase_spans_when_sampled_out(self, clock: ManualClock) -> None:
        """They are not even asked for."""
        spy = Spy(ALWAYS_OFF.should_sample(None, 1, "").decision)
        captured = captured_telemetry(sampler=spy, clock=clock)
        complete(generated(opened(captured), clock))
        assert [name for name, _ in spy.seen] == [NAME]

    @pytest.mark.parametrize("name", ALL)
    def test_no_exemplar_points_to_a_trace_that_was_not_kept(
        self, clock: ManualClock, name: str
    ) -> None:
        """An exemplar without a trace leads nowhere."""
        captured = captured_telemetry(sampler=ALWAYS_OFF, clock=clock)
        complete(generated(opened(captured), clock))
        assert [()] * len(captured.points(name)) == [
            each.exemplars for each in captured.points(name)
        ]

    @pytest.mark.parametrize("name", ALL)
    def test_exemplars_point_to_the_request_span(
        self, captured: CapturedTelemetry, clock: ManualClock, name: str
    ) -> None:
        """Also when another task ends the request, where another span is current."""

        async def scenario() -> None:
            live = generated(opened(captured), clock)
            with captured.telemetry.tracer.start_as_current_span("other"):
                await asyncio.create_task(_ended(live))

        asyncio.run(scenario())
        context = captured.span(NAME).context
        exemplars = [each for point in captured.points(name) for each in point.exemplars]
        assert {(context.trace_id, context.span_id)} == {
            (each.trace_id, each.span_id) for each in exemplars
        }


class TestModels:
    """Model names come from clients and must not flood a time series database."""

    def test_a_name_that_was_only_refused(self, captured: CapturedTelemetry) -> None:
        """It may be anything that a client wrote, and is `_OTHER`."""
        live = opened(captured, model="no-such-model")
        live.recorder.fail(Outcome.REJECTED, "404")
        live.finish()
        assert models(captured) == {"_OTHER": 1}

    @pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.CANCELLED])
    def test_a_model_that_fails_from_the_start(
        self, captured: CapturedTelemetry, outcome: Outcome
    ) -> None:
        """An engine took the request, so the name exists, and its errors count as its own."""
        live = opened(captured, model="new")
        live.recorder.fail(outcome, "x")
        live.finish()
        assert models(captured) == {"new": 1}

    def test_names_that_are_known_beforehand(self, captured: CapturedTelemetry) -> None:
        """A server that says what it serves has its refusals under that name."""
        captured.telemetry.instruments.know(["tiny"])
        live = opened(captured)
        live.recorder.fail(Outcome.REJECTED, "429")
        live.finish()
        assert models(captured) == {"tiny": 1}

    def test_error_types_are_bounded(self, captured: CapturedTelemetry) -> None:
        """An application that puts texts into `reject` makes no more series than the bound."""
        for number in range(300):
            live = opened(captured)
            live.recorder.fail(Outcome.REJECTED, f"prompt of {number} tokens")
            live.finish()
        assert len(captured.points(semconv.SERVER_DURATION)) <= 201

    def test_a_known_name_stays_when_it_is_refused(self, captured: CapturedTelemetry) -> None:
        """A full queue does not make a model unknown."""
        complete(opened(captured))
        live = opened(captured)
        live.recorder.fail(Outcome.REJECTED, "429")
        live.finish()
        assert {"tiny"} == set(models(captured))

    def test_their_number_is_bounded(self, captured: CapturedTelemetry) -> None:
        """The first ones keep their names, all others share one."""
        for number in range(MOST_MODELS + 7):
            complete(opened(captured, model=f"m{number}"))
        found = models(captured)
        assert {f"m{number}" for number in range(MOST_MODELS)} | {"_OTHER"} == set(found)
        assert found["_OTHER"] == 7

    def test_the_span_keeps_the_name(self, captured: CapturedTelemetry) -> None:
        """Only metrics are bounded."""
        live = opened(captured, model="no-such-model")
        live.recorder.fail(Outcome.REJECTED, "404")
        live.finish()
        assert captured.spans[0].attributes[MODEL] == "no-such-model"


class TestClient:
    """The conventions' client metrics, in both vocabularies."""

    @pytest.mark.parametrize(
        ("vocabulary", "duration"),
        [
            (V1_41, "gen_ai.client.operation.duration"),
            (GENAI_MAIN, "gen_ai.client.inference.duration"),
        ],
    )
    def test_names(self, clock: ManualClock, vocabulary: Vocabulary, duration: str) -> None:
        """One record under the vocabulary's name, none under the servers'."""
        captured = captured_telemetry(EmitSettings(vocabulary=vocabulary), clock=clock)
        complete(generated(opened(captured, Side.CLIENT), clock))
        assert only(captured, duration).count == 1
        assert [each for name in (DURATION, TTFT, TPOT) for each in captured.points(name)] == []

    def test_the_server_that_was_asked(self, captured: CapturedTelemetry) -> None:
        """Address and port tell replicas apart."""
        complete(opened(captured, Side.CLIENT, server_address="gpu-7", server_port=8000))
        attributes = only(captured, V1_41.client_duration).attributes
        assert (attributes["server.address"], attributes["server.port"]) == ("gpu-7", 8000)

    def test_tokens(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """In version 1.41, one histogram with the type as an attribute."""
        complete(generated(opened(captured, Side.CLIENT), clock))
        points = captured.points("gen_ai.client.token.usage")
        assert {each.attributes["gen_ai.token.type"]: each.sum for each in points} == {
            "input": 7,
            "output": 5,
        }
        assert tuple(float(4**power) for power in range(14)) == points[0].bounds

    def test_tokens_in_the_newer_vocabulary(self, clock: ManualClock) -> None:
        """There, one histogram for each type."""
        captured = captured_telemetry(EmitSettings(vocabulary=GENAI_MAIN), clock=clock)
        complete(generated(opened(captured, Side.CLIENT), clock))
        prefix = "gen_ai.client.inference.operation."
        sums = [only(captured, f"{prefix}{kind}_tokens").sum for kind in ("input", "output")]
        assert sums == [7, 5]
        assert captured.points("gen_ai.client.token.usage") == []

    def test_unknown_tokens_are_not_recorded(self, captured: CapturedTelemetry) -> None:
        """No sample is better than a zero."""
        complete(opened(captured, Side.CLIENT))
        assert captured.points("gen_ai.client.token.usage") == []


def test_without_a_meter_provider_nothing_is_computed_for_metrics(
    captured: CapturedTelemetry,
) -> None:
    """A provider that does nothing is told apart, and the span is written all the same."""
    telemetry = Telemetry(captured.tracer_provider, NoOpMeterProvider())
    assert not telemetry.instruments.enabled
    complete(telemetry.start(INFO, Side.SERVER))
    assert captured.span(NAME).attributes[semconv.OUTCOME] == "ok"


def test_a_request_that_ends_twice_is_recorded_once(
    captured: CapturedTelemetry, clock: ManualClock
) -> None:
    """Ending a request again adds no sample."""
    live = complete(generated(opened(captured), clock))
    live.finish()
    live.abandon()
    live.recorder.mark(Mark.FINISHED)
    assert [only(captured, name).count for name in ALL[:3]] == [1, 1, 1]


async def _ended(live: Any) -> None:
    complete(live)
