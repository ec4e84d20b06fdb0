"""A real vLLM server, traced into a real Jaeger: every request, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_llm import semconv
from tests.conformance.requests import HELD, HOLDING, Call, chat, completion, held, response, sent
from tests.services import jaeger, vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
REPO = Path(__file__).parents[2]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MS = 1_000
NATIVE = {
    "otel_llm.queue_us": "gen_ai.latency.time_in_queue",
    "otel_llm.prefill_us": "gen_ai.latency.time_in_model_prefill",
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[jaeger.Jaeger]:
    """Jaeger with storage in memory."""
    with jaeger.Jaeger.start(tmp_path_factory.mktemp("jaeger")) as server:
        yield server


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, backend: jaeger.Jaeger) -> Iterator[vllm.Vllm]:
    """VLLM with this distribution installed, its own tracing and per-request metrics on."""
    work = tmp_path_factory.mktemp("vllm")
    vllm.overlay(HOLDING, work / "overlay")
    with vllm.Vllm.start(
        work,
        overlay=vllm.overlay(REPO, work / "overlay"),
        args=[
            "--enable-per-request-metrics",
            f"--otlp-traces-endpoint={backend.otlp_grpc}",
        ],
        env=vllm.exporting(backend.otlp_http, OTEL_EXPORTER_OTLP_TRACES_INSECURE="true"),
    ) as server:
        yield server


def mixed() -> list[Call]:
    """Forty requests: every route, streaming and not, three ways to fail."""
    usage = {"stream_options": {"include_usage": True}}
    return [
        *(Call(CHAT, chat(stream=True, **usage)) for _ in range(10)),
        *(Call(CHAT, chat()) for _ in range(6)),
        *(Call(COMPLETIONS, completion(stream=True, **usage)) for _ in range(5)),
        *(Call(COMPLETIONS, completion()) for _ in range(4)),
        *(Call(RESPONSES, response(stream=True)) for _ in range(3)),
        *(Call(RESPONSES, response()) for _ in range(2)),
        *(Call(CHAT, chat(stream=True, **HELD), "cancelled", leaves=True) for _ in range(3)),
        *(Call(CHAT, chat(**HELD), "cancelled", gives_up=True) for _ in range(2)),
        Call(CHAT, chat(max_tokens=-1), "rejected"),
        Call(CHAT, chat(model="absent"), "rejected"),
        Call(CHAT, chat(n=3, stream=True)),
        Call(CHAT, chat(n=3)),
        Call(COMPLETIONS, completion(prompt=["One", "Two"], stream=True)),
    ]


async def sent_to(engine: vllm.Vllm, calls: list[Call]) -> list[Call]:
    """Send all calls, and give those up that ask for it when all others have ended."""
    async with held(engine, [call for call in calls if call.gives_up]):
        await sent(engine.url, [call for call in calls if not call.gives_up])
    return calls


@pytest.fixture(scope="module")
def traces(
    engine: vllm.Vllm, backend: jaeger.Jaeger
) -> list[tuple[Call, list[dict[str, Any]], list[dict[str, Any]]]]:
    """What was sent, our spans of it, and vLLM's own."""
    asyncio.run(sent(engine.url, [Call(CHAT, chat())]))
    found = []
    for call in asyncio.run(sent_to(engine, mixed())):
        awaited = _both_arrived if call.outcome == "ok" else has_server_span
        spans = backend.wait_for(call.trace_id, awaited, timeout=30)
        own = [each for each in spans if each["scope"] == semconv.SCOPE]
        found.append((call, own, [each for each in spans if each["name"] == "llm_request"]))
    return found


def has_server_span(spans: list[dict[str, Any]]) -> bool:
    """True once the last of our spans to end has arrived."""
    return any(each["scope"] == semconv.SCOPE and each["kind"] == 2 for each in spans)


def _both_arrived(spans: list[dict[str, Any]]) -> bool:
    return has_server_span(spans) and any(each["name"] == "llm_request" for each in spans)


def request_span(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """The one request span among *spans*."""
    (found,) = [each for each in spans if semconv.SIDE in each["attributes"]]
    return found


def test_each_request_is_one_server_span_and_one_request_span(traces: Any) -> None:
    """The SERVER span joins the caller's trace, the request span is its INTERNAL child."""
    assert len(traces) == 40
    for call, spans, _ in traces:
        (server,) = [each for each in spans if each["kind"] == 2]
        span = request_span(spans)
        assert call.span_id == server["parent_span_id"]
        assert server["span_id"] == span["parent_span_id"]
        assert span["kind"] == 1
        assert server["start_ns"] == span["start_ns"]


def test_each_request_has_the_outcome_that_its_caller_gave_it(traces: Any) -> None:
    """Answered, left in the middle, given up, or refused: each says so."""
    for call, spans, _ in traces:
        span = request_span(spans)
        assert call.outcome == span["attributes"][semconv.OUTCOME]
        assert ("error.type" in span["attributes"]) == (call.outcome != "ok")
        assert span["status_code"] != 2
        incomplete = call.outcome == "cancelled" and call.streams
        assert incomplete == span["attributes"].get(semconv.INCOMPLETE, False)


def test_phases_tile_each_request(traces: Any) -> None:
    """Phase spans follow each other, lie inside the request, and agree with the integers."""
    for _, spans, _ in traces:
        span = request_span(spans)
        numbers = span["attributes"]
        phases = sorted(
            (each for each in spans if each["name"].startswith("llm.")),
            key=lambda each: each["start_ns"],
        )
        at, total = span["start_ns"], 0
        for each in phases:
            us = numbers[semconv.phase_us(each["name"].removeprefix("llm."))]
            assert at <= each["start_ns"] <= each["end_ns"] <= span["end_ns"]
            assert us * 1000 == each["end_ns"] - each["start_ns"]
            assert span["span_id"] == each["parent_span_id"]
            at, total = each["end_ns"], total + us
        assert numbers[semconv.E2E_US] == total + numbers[semconv.UNACCOUNTED_US]
        assert numbers[semconv.E2E_US] * 1000 == span["end_ns"] - span["start_ns"]


def test_answered_requests_are_accounted_for_whole(traces: Any) -> None:
    """From arrival to the last byte no time is left over, and every phase is there."""
    for call, spans, _ in traces:
        if call.outcome == "ok":
            numbers = request_span(spans)["attributes"]
            expected = {"preprocess", "queue", "prefill", "decode", "delivery"}
            assert expected <= set(_sources(numbers))
            assert numbers[semconv.UNACCOUNTED_US] == 0
            assert call.streams == ("first_token" in _sources(numbers))


def _sources(numbers: dict[str, Any]) -> dict[str, str]:
    return dict(each.split("=") for each in numbers[semconv.SOURCES].split(";"))


def single(traces: Any) -> list[tuple[Call, dict[str, Any], dict[str, Any]]]:
    """Answered requests of one sequence: the call, our request span, and vLLM's span."""
    return [
        (call, request_span(spans), native[0])
        for call, spans, native in traces
        if call.outcome == "ok" and len(native) == 1
    ]


def test_times_agree_with_the_engines_own_span(traces: Any) -> None:
    """Queue, prefill and the decode window differ from vLLM's by less than a millisecond."""
    assert len(single(traces)) == 30
    for _, ours, native in single(traces):
        numbers, theirs = ours["attributes"], native["attributes"]
        for mine, its in NATIVE.items():
            assert numbers[mine] == pytest.approx(theirs[its] * 1e6, abs=MS)
        decode = numbers["otel_llm.decode_us"] + numbers.get("otel_llm.first_token_us", 0)
        assert decode == pytest.approx(theirs["gen_ai.latency.time_in_model_decode"] * 1e6, abs=MS)
        assert numbers["gen_ai.usage.output_tokens"] == theirs["gen_ai.usage.completion_tokens"]
        assert numbers["gen_ai.usage.input_tokens"] == theirs["gen_ai.usage.prompt_tokens"]


def test_times_agree_with_the_metrics_in_the_reply(traces: Any) -> None:
    """Queue, prefill and decode differ from `metrics` in the reply by less than a millisecond."""
    checked = 0
    for call, ours, _ in single(traces):
        metrics = _metrics(call)
        if metrics is None:
            continue
        numbers = ours["attributes"]
        decode = numbers["otel_llm.decode_us"] + numbers.get("otel_llm.first_token_us", 0)
        assert numbers["otel_llm.queue_us"] == pytest.approx(metrics["queue_time_ms"] * MS, abs=MS)
        prefill = metrics["time_to_first_token_ms"] * MS
        assert numbers["otel_llm.prefill_us"] == pytest.approx(prefill, abs=MS)
        assert decode == pytest.approx(metrics["generation_time_ms"] * MS, abs=MS)
        checked += 1
    assert checked >= 25


def _metrics(call: Call) -> dict[str, Any] | None:
    """The `metrics` object of a reply, in its body or in its last usage chunk."""
    if not call.streams:
        found = json.loads(call.text).get("metrics")
        return found if isinstance(found, dict) else None
    chunks = [line.removeprefix("data: ") for line in call.text.splitlines() if "metrics" in line]
    parsed = [json.loads(chunk) for chunk in chunks if chunk.startswith("{")]
    return next((each["metrics"] for each in parsed if each.get("metrics")), None)


def test_engine_spans_are_children_of_ours(traces: Any) -> None:
    """VLLM's own `llm_request` hangs below the request span, once per sequence."""
    for call, spans, native in traces:
        span = request_span(spans)
        assert {span["span_id"]} >= {each["parent_span_id"] for each in native}
        if call.outcome == "ok":
            sequences = call.body.get("n", 1)
            prompts = call.body.get("prompt")
            sequences *= len(prompts) if isinstance(prompts, list) else 1
            assert sequences == len(native)


def test_requests_that_were_given_up_say_where_their_time_went(traces: Any) -> None:
    """A plain reply that never came has its wait and its prefill, and ended in decode."""
    given_up = [request_span(s)["attributes"] for c, s, _ in traces if c.gives_up]
    assert len(given_up) == 2
    for numbers in given_up:
        assert {"queue", "prefill"} <= set(_sources(numbers))
        assert numbers[semconv.ENDED_IN] == "decode"


def test_several_answers_are_one_request(traces: Any) -> None:
    """Three answers: tokens are summed, and the number of choices is on the span."""
    several = [(c, s) for c, s, _ in traces if c.body.get("n") == 3]
    assert len(several) == 2
    for _, spans in several:
        numbers = request_span(spans)["attributes"]
        assert numbers["gen_ai.request.choice.count"] == 3
        assert numbers["gen_ai.usage.output_tokens"] == 72
        assert numbers["gen_ai.response.finish_reasons"] == ["length"] * 3


def test_nothing_of_a_prompt_or_an_answer_is_exported(traces: Any) -> None:
    """With content off, no attribute holds a piece of the prompt."""
    for _, spans, native in traces:
        exported = json.dumps([spans, native])
        assert "quick brown" not in exported
        assert "never said" not in exported


def test_first_token_agrees_from_the_engines_own_arrival(
    engine: vllm.Vllm, backend: jaeger.Jaeger
) -> None:
    """One at a time: vLLM's arrival plus its TTFT is our first token, and a hop to its front."""
    calls = asyncio.run(
        sent(engine.url, [Call(CHAT, chat(stream=True)) for _ in range(9)], at_once=False)
    )
    late = []
    for call in calls:
        spans = backend.wait_for(call.trace_id, _both_arrived, timeout=30)
        numbers = request_span([each for each in spans if each["scope"] == semconv.SCOPE])
        (native,) = [each for each in spans if each["name"] == "llm_request"]
        theirs = native["attributes"]["gen_ai.latency.time_to_first_token"] * 1e6
        arrived = (native["start_ns"] - numbers["start_ns"]) / 1000
        late.append(arrived + theirs - numbers["attributes"][semconv.TTFT_US])
    # Any of them may have waited for a processor, which is no error of ours.
    assert -MS / 10 < min(late) < MS
