"""The real Collector's `transform` processor does to spans what the Python function says."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_llm import semconv
from otel_llm.analysis.spans import SpanRecord
from otel_llm.servers.native import rewritten
from tests.architecture.source import ROOT
from tests.servers.native import spans as data
from tests.services import otelcol, web
from tests.services.otelcol import Collector

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
FILE = ROOT / "collector" / "transform-native-spans.yaml"


def through_the_collector(workdir: Path, spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """The spans as the Collector keeps them, in the order of their ids."""
    processors = yaml.safe_load(FILE.read_text())["processors"]
    with Collector.start(workdir, otelcol.base_config(workdir, processors)) as collector:
        answer = web.request(f"{collector.otlp_http}/v1/traces", document(spans))
        assert (answer.status, answer.json().get("partialSuccess", {})) == (200, {})
    return sorted(map(data.record, collector.kept()), key=lambda each: each.span_id)


def document(spans: Iterable[SpanRecord]) -> dict[str, Any]:
    """Spans as OTLP JSON."""
    scopes = [{"scope": {"name": each.scope or ""}, "spans": [_span(each)]} for each in spans]
    return {"resourceSpans": [{"scopeSpans": scopes}]}


def _span(span: SpanRecord) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": data.KINDS.index(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _pairs(span.attributes),
        "status": {"code": data.STATUSES.index(span.status)},
    }


def _pairs(given: Mapping[str, object]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: object) -> dict[str, Any]:
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else str(value)}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case dict():
            return {"kvlistValue": {"values": _pairs(value)}}
    return {"stringValue": value}


def numbered(spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """The spans under ids of their own, by which they are found again."""
    return [replace(each, span_id=f"{number:016x}") for number, each in enumerate(spans, start=1)]


def facts(spans: Iterable[SpanRecord]) -> list[tuple[str, str]]:
    """What each span holds; repr tells 1 from 1.0 and knows NaN."""
    return [
        (each.name, repr(sorted((k, _plain(v)) for k, v in each.attributes.items())))
        for each in spans
    ]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("version", ["0.32.0", "0.12.0"])
def test_recorded_spans_come_out_the_same(version: str, tmp_path: Path) -> None:
    """What a real vLLM made."""
    spans = numbered(data.recorded(version))
    found = through_the_collector(tmp_path, spans)
    assert facts(rewritten(spans)) == facts(found)
    assert all(semconv.OUTCOME in each.attributes for each in found)


def test_spans_of_every_engine_come_out_the_same(tmp_path: Path) -> None:
    """What the other engines make after their sources; nothing is added, nothing is lost."""
    spans = numbered(data.BUILT)
    assert facts(rewritten(spans)) == facts(through_the_collector(tmp_path, spans))


def test_hostile_spans_come_out_the_same(tmp_path: Path) -> None:
    """Two thousand spans with attributes that nobody should write."""
    spans = numbered(map(data.hostile, range(2_000)))
    wanted, found = facts(rewritten(spans)), facts(through_the_collector(tmp_path, spans))
    assert len(wanted) == len(found)
    for each, (mine, its) in enumerate(zip(wanted, found, strict=True)):
        assert mine == its, spans[each]
    assert sum(semconv.SIDE in each.attributes for each in rewritten(spans)) > 500


def test_spans_of_others_are_left_alone(tmp_path: Path) -> None:
    """A client's span of the same name, and one of ours, are not touched."""
    spans = numbered(
        [
            data.made("llm_request", 1000, {"gen_ai.latency.time_in_queue": 0.1}, scope="mine"),
            data.made("llm_request", 1000, {semconv.SIDE: "server", **data.VLLM}, scope="vllm.x"),
            data.made("generate", 1000, {"queue_time": "1ms"}),
            data.made("tokenize", 1000, {}),
        ]
    )
    assert facts(spans) == facts(rewritten(spans)) == facts(through_the_collector(tmp_path, spans))


def test_the_collector_takes_the_file_as_it_is(tmp_path: Path) -> None:
    """Validation finds nothing to say against it."""
    processors = yaml.safe_load(FILE.read_text())["processors"]
    assert otelcol.validate(tmp_path, otelcol.base_config(tmp_path, processors)) == ""
