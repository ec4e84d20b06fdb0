"""Metrics and spans by OTLP into a real Collector: names, buckets, and exemplars that lead on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import otel_llm
from otel_llm import semconv
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.telemetry import Telemetry
from otel_llm.providers import providers
from otel_llm.timeline import Mark, Side
from tests.services.otelcol import Collector, base_config
from tests.services.process import poll

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A Collector that writes spans to one file and metrics to another."""
    config = base_config(tmp_path)
    config["exporters"]["file/metrics"] = {
        "path": str(tmp_path / "metrics.jsonl"),
        "flush_interval": "100ms",
    }
    config["service"]["pipelines"]["metrics"] = {
        "receivers": ["otlp"],
        "exporters": ["file/metrics"],
    }
    with Collector.start(tmp_path, config) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_histograms_and_exemplars_arrive(
    collector: Collector, tmp_path: Path, protocol: str
) -> None:
    """Every histogram has the conventions' buckets, and its exemplar is the request span's."""
    endpoint = collector.otlp_grpc if protocol == "grpc" else collector.otlp_http
    made = providers(endpoint=endpoint, protocol=protocol, service_name="demo")
    tracers, meters = made.tracer, made.meter
    live = Telemetry(tracers, meters).start(RequestInfo("chat", "demo", "tiny"), Side.SERVER)
    live.recorder.streaming = True
    for mark in (Mark.QUEUED, Mark.SCHEDULED, Mark.FIRST_TOKEN, Mark.LAST_TOKEN):
        live.recorder.mark(mark)
    live.recorder.usage(input=3, output=5)
    live.recorder.ending(end_record=True)
    live.finish()
    assert tracers.force_flush()
    assert meters.force_flush()  # type: ignore[attr-defined]

    spans = collector.wait_kept(lambda found: any(semconv.SIDE in s["attributes"] for s in found))
    (span,) = [each for each in spans if semconv.SIDE in each["attributes"]]
    assert span["scope"] == semconv.SCOPE
    metrics = poll(lambda: histograms(tmp_path / "metrics.jsonl"), bool, limit=10)
    buckets = {
        semconv.SERVER_DURATION: semconv.DURATION_BUCKETS,
        semconv.SERVER_TTFT: semconv.TTFT_BUCKETS,
        semconv.SERVER_TPOT: semconv.TPOT_BUCKETS,
        semconv.PHASE_DURATION: semconv.PHASE_BUCKETS,
    }
    for name, bounds in buckets.items():
        for point in metrics[name]["histogram"]["dataPoints"]:
            assert point["explicitBounds"] == pytest.approx(list(bounds))
            for exemplar in point["exemplars"]:
                assert exemplar["traceId"] == span["trace_id"]
                assert exemplar["spanId"] == span["span_id"]
    tracers.shutdown()
    meters.shutdown()  # type: ignore[attr-defined]


def histograms(path: Path) -> dict[str, Any]:
    """The metrics in the exporter's file, by name."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    scopes = [
        scope
        for line in lines
        for resource in json.loads(line)["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        if scope["scope"]["name"] == semconv.SCOPE
    ]
    return {metric["name"]: metric for scope in scopes for metric in scope["metrics"]}


def test_spans_reach_it_from_configure(collector: Collector) -> None:
    """`configure(endpoint=...)` is all that a program has to say."""
    otel_llm.configure(endpoint=collector.otlp_http, service_name="demo", engines=[])
    with otel_llm.trace_request("chat", model="tiny", provider="mine") as request:
        request.mark(otel_llm.Mark.FIRST_TOKEN)
    spans = collector.wait_kept(bool, timeout=20)
    assert {"demo"} == {each["resource"]["service.name"] for each in spans}
