"""Spans to rewrite: recorded ones, those built after the engines' sources, and hostile ones.

vLLM's are recorded (see `record`). The others cannot be run here, so their spans are built after
what is public of them: SGLang 0.5.23's `observability` package, TGI's router at its last commit,
TensorRT-LLM's `llmapi` tracing, Dynamo 1.6's `backend-common` adapter. Their numbers are made up.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from otel_llm.analysis.spans import SpanRecord
from otel_llm.servers.native.rows import ROWS
from tests.services import otlp_json

FOLDER = Path(__file__).with_name("recordings")
START_NS = 1_764_460_800_000_000_000
KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")


def recorded(version: str) -> list[SpanRecord]:
    """The spans of a real vLLM."""
    text = (FOLDER / f"vllm-{version}.json").read_text()
    return [record(each) for each in otlp_json.spans(json.loads(text))]


def record(span: dict[str, Any]) -> SpanRecord:
    """One flat span of OTLP JSON."""
    return SpanRecord(
        trace_id=span["trace_id"],
        span_id=span["span_id"],
        parent_span_id=span["parent_span_id"] or None,
        name=span["name"],
        start_ns=span["start_ns"],
        end_ns=span["end_ns"],
        kind=KINDS[span["kind"]],
        attributes=span["attributes"],
        resource=span["resource"],
        status=STATUSES[span["status_code"]],
        scope=span["scope"],
    )


def made(
    name: str, us: int, attributes: dict[str, Any], *, scope: str = "", **more: Any
) -> SpanRecord:
    """A span of some engine, *us* microseconds long."""
    end_ns = START_NS + us * 1000
    return SpanRecord("0" * 31 + "1", "0" * 15 + "1", None, name, START_NS, end_ns,
                      attributes=attributes, scope=scope, **more)  # fmt: skip


def sglang(finish: str = '["stop"]', **more: Any) -> SpanRecord:
    """SGLang's root span: 9 s, of which 0.2 s went by before the request was handed over."""
    return made(
        " Req 1a2b3c4d",
        9_000_000,
        {
            "rid": "1a2b3c4d5e6f",
            "module": "sglang::request",
            "gen_ai.usage.completion_tokens": 101,
            "gen_ai.usage.prompt_tokens": 512,
            "gen_ai.usage.cached_tokens": 256,
            "gen_ai.request.id": "1a2b3c4d5e6f",
            "gen_ai.request.n": 1,
            "gen_ai.response.model": "tiny",
            "gen_ai.response.finish_reasons": finish,
            "gen_ai.latency.time_to_first_token": 6.7,
            "gen_ai.latency.e2e": 9.0,
            "gen_ai.latency.time_in_model_decode": 2.3,
            "gen_ai.latency.time_in_model_inference": 8.8,
            "gen_ai.latency.time_in_model_prefill": 6.5,
            **more,
        },
        scope="sglang server",
    )


def sglang_stages() -> list[SpanRecord]:
    """Spans that SGLang makes of a request's stages."""
    stages = {
        "tokenize": 150_000, "api_server_dispatch": 50_000, "request_process": 10_000,
        "prefill_waiting": 5_100_000, "prefill_forward": 1_400_000, "decode_forward": 2_290_000,
        "decode_loop": 23_000,
    }  # fmt: skip
    return [made(name, us, {}, scope="sglang server") for name, us in stages.items()]


def sglang_trace() -> list[SpanRecord]:
    """A request with its stages below it, from two workers; the first was there a little sooner."""
    root = replace(sglang(), span_id="a1")
    thread = made("scheduler [TP 0] (host:01234567 | pid:7)", 8_800_000, {}, scope=root.scope)
    found = [root, replace(thread, span_id="b1", parent_span_id="a1")]
    for number, each in enumerate(sglang_stages()):
        late = replace(each, start_ns=each.start_ns + 1000, end_ns=each.end_ns + 9000)
        found += [
            replace(late, span_id=f"d{number}", parent_span_id="b1"),
            replace(each, span_id=f"c{number}", parent_span_id="b1"),
        ]
    return found


def tensorrt_llm(**more: Any) -> SpanRecord:
    """TensorRT-LLM's request span: it tells the last token's time, and ends a little later."""
    return made(
        "llm_request",
        1_010_000,
        {
            "gen_ai.request.id": "7",
            "gen_ai.request.max_tokens": 64,
            "gen_ai.request.n": 1,
            "gen_ai.usage.prompt_tokens": 33,
            "gen_ai.usage.completion_tokens": 61,
            "gen_ai.latency.time_to_first_token": 0.4,
            "gen_ai.latency.e2e": 1.0,
            "gen_ai.latency.time_in_queue": 0.25,
            "gen_ai.latency.kv_cache_transfer_time": 0.05,
            "gen_ai.response.finish_reasons": ["length"],
            **more,
        },
        scope="trt.llm",
        kind="server",
    )


def tgi(name: str = "generate_stream", **more: Any) -> SpanRecord:
    """TGI's handler span: times are texts, as Rust writes durations for debugging."""
    return made(
        name,
        2_000_500,
        {
            "code.namespace": "text_generation_router::server",
            "total_time": "2.000123456s",
            "validation_time": "412.5µs",
            "queue_time": "612.345678ms",
            "inference_time": "1.387365278s",
            "time_per_token": "13.87365ms",
            "seed": "Some(42)",
            **more,
        },
        scope="opentelemetry-otlp",
    )


def dynamo(**more: Any) -> SpanRecord:
    """Dynamo's span around a worker's engine: milliseconds as texts, counts as numbers."""
    return made(
        "engine.generate",
        1_500_000,
        {
            "model": "Qwen/Qwen3-0.6B",
            "input_tokens": 21,
            "disagg_role": "decode",
            "ttft_ms": "120.57",
            "output_tokens": 100,
            "finish_reason": "Length",
            "cancelled": False,
            "avg_itl_ms": "13.80",
            "itl_p50_ms": "13.51",
            "itl_p99_ms": "20.02",
            "itl_max_ms": "31.00",
            **more,
        },
        scope="dynamo-worker",
    )


VLLM: dict[str, Any] = {
    "gen_ai.latency.time_to_first_token": 0.3,
    "gen_ai.latency.e2e": 0.9,
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": 0.15,
    "gen_ai.latency.time_in_model_decode": 0.55,
    "gen_ai.usage.prompt_tokens": 14,
    "gen_ai.usage.completion_tokens": 12,
}
"""Attributes of a vLLM span in round numbers."""

BUILT = [
    sglang(),
    sglang('["abort"]'),
    sglang('["stop", "length"]'),
    replace(sglang(), name="decode Req 1a2b3c4d"),
    *sglang_stages(),
    tensorrt_llm(),
    tensorrt_llm(**{"gen_ai.request.n": 2, "gen_ai.response.finish_reasons": '["timeout"]'}),
    tgi(),
    tgi("chat_completions"),
    dynamo(),
    dynamo(disagg_role="agg", cancelled=True),
    dynamo(error_kind="Unknown", finish_reason="Stop"),
]
"""One request of each engine and some that ended otherwise."""

ODD: tuple[Any, ...] = (
    True, False, 0, 1, 2, -1, 2**62, -(2**63), 0.0, 0.5, 1e-9, 1.0000005, 7e6, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"), "", "7", "1.5ms", "999ns", "1.5us", "1.5µs", "12.34",
    "12.3456789ms", "1234567.123456789s", "12345678s", "3.7m", "ok", "Stop", "Errored", "Error(x)",
    "true", '["stop"]', '["abort","stop"]', '["stop", "length"]', '[""]', '["st\\u006fp"]', "雪\n",
    None, ["stop"], ["abort"], ["stop", "error"], [], ["x" * 40], b"\xff\x00", [1, 2], {"a": "b"},
)  # fmt: skip
"""Values that a span may carry over OTLP."""


OURS = {
    "otel_llm.side", "otel_llm.e2e_us", "otel_llm.decode_us", "otel_llm.reported.decode_us",
    "otel_llm.sources", "otel_llm.outcome", "otel_llm.tpot_us", "gen_ai.provider.name",
    "gen_ai.operation.name", "gen_ai.response.finish_reasons", "error.type",
}  # fmt: skip
"""Names that the summary writes, some of them on every span."""


def hostile(seed: int) -> SpanRecord:
    """A span that some row claims, with values that nobody should write."""
    random = Random(seed)
    base = random.choice([*BUILT, *recorded("0.32.0")])
    attributes = dict(base.attributes)
    for name in list(attributes):
        chance = random.random()
        if chance < 0.3:
            attributes[name] = random.choice(ODD)
        elif chance < 0.4:
            del attributes[name]
    targets = {each.target for row in ROWS for each in row.copies}
    for name in sorted(targets | OURS):
        if random.random() < 0.05:
            attributes[name] = random.choice(ODD)
    start = base.start_ns + random.randrange(10**6)
    end = start + random.choice([0, 1, 499, 500, random.randrange(10**10), base.end_ns - start])
    if random.random() < 0.05:
        start, end = random.choice([(0, 0), (end, start - 1), (start, 2**63 - 1), (start, start)])
    return SpanRecord(
        base.trace_id, f"{seed + 1:016x}", None, base.name, start, end,
        attributes=attributes, scope=base.scope, status=random.choice(STATUSES),
    )  # fmt: skip
