"""Objectives on spans and metrics, and the rules that Prometheus makes alerts from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_llm.emit.objectives import parse_objectives
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, Point, captured_telemetry
from otel_llm.timeline import Outcome, Side
from tests.emit.builders import complete, generated, opened, written

REQUESTS, THRESHOLD, MISSED = (
    "otel_llm.slo.requests",
    "otel_llm.slo.threshold",
    "otel_llm.slo.missed",
)
RULES = Path(__file__).parents[2] / "collector/prometheus/slo-rules.yml"


def with_slo(clock: ManualClock, slo: str, **more: Any) -> CapturedTelemetry:
    """Telemetry whose requests are judged."""
    return captured_telemetry(EmitSettings(slo=parse_objectives(slo)), clock=clock, **more)


def counted(captured: CapturedTelemetry) -> dict[tuple[str, str], float]:
    """How many requests met or missed each objective."""
    points = captured.points(REQUESTS)
    return {(p.attributes["objective"], p.attributes["result"]): p.sum for p in points if p.sum}


class TestSpan:
    """The request span names what was missed."""

    def test_missed(self, clock: ManualClock) -> None:
        """The objectives missed, in the order they were given."""
        captured = with_slo(clock, "queue=9ms,ttft=30ms,e2e=70ms,ok")
        complete(generated(opened(captured), clock))
        assert written(captured)[MISSED] == ("queue", "e2e")

    @pytest.mark.parametrize("slo", ["ttft=30ms,ok", ""])
    def test_nothing_missed(self, clock: ManualClock, slo: str) -> None:
        """Absent, so that a Collector can select by its presence; likewise without objectives."""
        captured = with_slo(clock, slo)
        complete(generated(opened(captured), clock))
        assert MISSED not in written(captured)

    def test_the_application_cannot_say_otherwise(self, clock: ManualClock) -> None:
        """It is part of the summary."""
        captured = with_slo(clock, "queue=9ms")
        live = generated(opened(captured), clock)
        live.annotate({MISSED: ["nothing"]})
        complete(live)
        assert written(captured)[MISSED] == ("queue",)

    def test_by_the_status_of_the_reply(self, clock: ManualClock) -> None:
        """A refusal is the server's fault if the status says so."""
        captured = with_slo(clock, "ok")
        live = opened(captured)
        live.recorder.ending(status=503)
        live.finish()
        assert written(captured)[MISSED] == ("ok",)


class TestCounter:
    """Every request that counts, sampled or not."""

    def test_met_and_missed(self, clock: ManualClock) -> None:
        """One for each objective that the request has a number for."""
        captured = with_slo(clock, "queue=9ms,ttft=30ms,load=1s")
        complete(generated(opened(captured), clock))
        assert counted(captured) == {("queue", "missed"): 1, ("ttft", "met"): 1}

    def test_recorded_when_sampled_out(self, clock: ManualClock) -> None:
        """Burn rates are those of all requests."""
        captured = with_slo(clock, "ok", sampler=ALWAYS_OFF)
        complete(opened(captured))
        assert counted(captured) == {("ok", "met"): 1}

    def test_attributes(self, clock: ManualClock) -> None:
        """Objective, result, side and the bounded model; no operation, no provider."""
        captured = with_slo(clock, "ok")
        complete(opened(captured, Side.CLIENT))
        (point,) = [each for each in captured.points(REQUESTS) if each.sum]
        assert point.attributes == {
            "objective": "ok",
            "result": "met",
            "otel_llm.side": "client",
            "gen_ai.request.model": "tiny",
        }

    def test_the_model_is_bounded(self, clock: ManualClock) -> None:
        """A name that was only ever refused is none of ours."""
        captured = with_slo(clock, "ok")
        live = opened(captured, model="no-such-model")
        live.recorder.fail(Outcome.REJECTED, "404")
        live.finish()
        models = {each.attributes["gen_ai.request.model"] for each in captured.points(REQUESTS)}
        assert models == {"_OTHER"}

    def test_it_starts_at_zero(self, clock: ManualClock) -> None:
        """The first miss shall be an increase, which `rate` cannot see in a new series."""
        captured = with_slo(clock, "ok")
        complete(opened(captured))
        assert {each.attributes["result"]: each.sum for each in captured.points(REQUESTS)} == {
            "met": 1,
            "missed": 0,
        }

    def test_exemplars_point_to_the_request_span(self, clock: ManualClock) -> None:
        """From a burning budget to a request that burns it."""
        captured = with_slo(clock, "queue=9ms")
        complete(generated(opened(captured), clock))
        exemplars = [each for point in captured.points(REQUESTS) for each in point.exemplars]
        assert [each.span_id for each in exemplars] == [captured.span("chat tiny").context.span_id]

    def test_none_without_objectives(self, captured: CapturedTelemetry) -> None:
        """Neither a counter nor a limit."""
        complete(opened(captured))
        assert [*captured.points(REQUESTS), *captured.points(THRESHOLD)] == []


def test_the_limits_are_a_metric(clock: ManualClock) -> None:
    """In seconds, at every collection, for a line in a dashboard; `ok` has none."""
    captured = with_slo(clock, "ttft=500ms,ok")
    for _ in range(2):
        found: list[Point] = captured.points(THRESHOLD)
        assert [(each.attributes["objective"], each.sum) for each in found] == [("ttft", 0.5)]


class TestRules:
    """The rule file uses what is written, and nothing else."""

    def rules(self) -> list[dict[str, Any]]:
        """Every rule of every group."""
        groups = yaml.safe_load(RULES.read_text())["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def emitted(self, clock: ManualClock) -> tuple[set[str], dict[str, set[str]]]:
        """Names of metrics and labels as Prometheus has them, and the labels' values."""
        captured = with_slo(clock, "queue=9ms,ttft=30ms")
        complete(generated(opened(captured), clock))
        labels: dict[str, set[str]] = {"job": set()}
        for point in captured.points(REQUESTS):
            for key, value in point.attributes.items():
                labels.setdefault(key.replace(".", "_"), set()).add(value)
        return {f"{REQUESTS}_total".replace(".", "_")}, labels

    def test_metrics(self, clock: ManualClock) -> None:
        """Each name in an expression is a metric that we emit or the record of a rule."""
        known, _ = self.emitted(clock)
        known |= {rule["record"] for rule in self.rules() if "record" in rule}
        used = {
            name for rule in self.rules() for name in re.findall(r"[\w:]*slo[\w:]*", rule["expr"])
        }
        assert used == known - {name for name in known if name.startswith("model:")}

    def test_labels(self, clock: ManualClock) -> None:
        """Each label by which something is summed or selected is one that we emit."""
        _, known = self.emitted(clock)
        text = " ".join(rule["expr"] for rule in self.rules())
        summed = {
            name for names in re.findall(r"by \(([^)]*)\)", text) for name in names.split(", ")
        }
        selected = dict(re.findall(r"[{,] *(\w+)=\"([^\"]*)\"", text))
        assert selected == {"result": "missed"}
        assert selected["result"] in known["result"]
        assert summed <= set(known)

    def test_annotations(self, clock: ManualClock) -> None:
        """What they quote is still there after the sums."""
        for rule in self.rules():
            quoted = set(re.findall(r"\$labels\.(\w+)", str(rule.get("annotations"))))
            assert quoted <= {"job", "otel_llm_side", "objective"}

    def test_windows(self) -> None:
        """Those of the workbook: long and short window of each burn rate."""
        found = {
            (long, short, float(rate))
            for rule in self.rules()
            for long, rate, short, same in re.findall(
                r"rate(\w+) > \((\S+) \*[^)]*\)\)\s+and\s+\S+rate(\w+) > \((\S+) \*", rule["expr"]
            )
            if rate == same
        }
        assert found == {("1h", "5m", 14.4), ("6h", "30m", 6), ("1d", "2h", 3), ("3d", "6h", 1)}
