"""The oldest vLLM that runs here gives the same spans as today's: server, offline, script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from otel_llm import semconv
from tests.benchmarks.report import ROOT
from tests.conformance.requests import (
    HELD,
    HOLDING,
    Call,
    chat,
    completion,
    held,
    reached,
    sent,
)
from tests.conformance.test_vllm_direct import seen, tiles
from tests.conformance.test_vllm_jaeger import (
    CHAT,
    COMPLETIONS,
    MS,
    NATIVE,
    backend,
    has_server_span,
    request_span,
    sent_to,
)
from tests.conformance.test_vllm_pressure import TOGETHER
from tests.services import jaeger, vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
__all__ = ["backend"]
USAGE = {"stream_options": {"include_usage": True}}
Trace = tuple[Call, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, backend: jaeger.Jaeger) -> Iterator[vllm.Vllm]:
    """The older server with its own tracing on, and room for little more than one long sequence."""
    work = tmp_path_factory.mktemp("vllm")
    vllm.overlay(HOLDING, work / "overlay")
    with vllm.Vllm.start(
        work,
        version=vllm.OLDEST,
        overlay=vllm.overlay(ROOT, work / "overlay"),
        args=[f"--otlp-traces-endpoint={backend.otlp_grpc}", "--num-gpu-blocks-override=40"],
        env=vllm.exporting(backend.otlp_http, OTEL_EXPORTER_OTLP_TRACES_INSECURE="true"),
    ) as server:
        asyncio.run(sent(server.url, [Call(CHAT, chat())]))  # the first is slow
        yield server


@pytest.fixture(scope="module")
def traces(engine: vllm.Vllm, backend: jaeger.Jaeger) -> list[Trace]:
    """Requests of every kind at once: what was sent, our spans of it, and vLLM's own."""
    calls = [
        *(Call(CHAT, chat(stream=True, **USAGE)) for _ in range(3)),
        *(Call(CHAT, chat()) for _ in range(3)),
        Call(COMPLETIONS, completion(stream=True, **USAGE)),
        Call(CHAT, chat(n=3, stream=True)),
        Call(CHAT, chat(n=3)),
        Call(CHAT, chat(stream=True, **HELD), "cancelled", leaves=True),
        Call(CHAT, chat(**HELD), "cancelled", gives_up=True),
        Call(CHAT, chat(max_tokens=-1), "rejected"),
    ]
    return [read(backend, call) for call in asyncio.run(sent_to(engine, calls))]


def read(store: jaeger.Jaeger, call: Call) -> Trace:
    """A call and its spans, once they have arrived."""

    def arrived(spans: list[dict[str, Any]]) -> bool:
        native = [each for each in spans if each["name"] == "llm_request"]
        awaited = call.body.get("n", 1) if call.outcome == "ok" else 0
        return has_server_span(spans) and len(native) >= awaited

    spans = store.wait_for(call.trace_id, arrived, timeout=30)
    ours = [each for each in spans if each["scope"] == semconv.SCOPE]
    return call, ours, [each for each in spans if each["name"] == "llm_request"]


def numbers_of(trace: Trace) -> dict[str, Any]:
    """The attributes of our request span."""
    found: dict[str, Any] = request_span(trace[1])["attributes"]
    return found


def test_each_request_has_its_outcome_and_adds_up(traces: list[Trace]) -> None:
    """One request span below one SERVER span; phases and what is unaccounted are the whole."""
    for trace in traces:
        call, spans, _ = trace
        (server,) = [each for each in spans if each["kind"] == 2]
        assert server["parent_span_id"] == call.span_id
        assert request_span(spans)["parent_span_id"] == server["span_id"]
        found = numbers_of(trace)
        assert found[semconv.OUTCOME] == call.outcome
        parts = [
            *("preprocess", "queue", "prefill", "first_token", "decode", "delivery"),
            "unaccounted",
        ]
        assert found[semconv.E2E_US] == sum(found.get(semconv.phase_us(each), 0) for each in parts)


def test_answered_requests_are_accounted_for_whole(traces: list[Trace]) -> None:
    """Queue and prefill are the engine's own, and no time is left over."""
    for trace in traces:
        call = trace[0]
        if call.outcome != "ok":
            continue
        found = numbers_of(trace)
        sources = dict(each.split("=") for each in found[semconv.SOURCES].split(";"))
        assert {"preprocess", "queue", "prefill", "decode", "delivery"} <= set(sources)
        assert found[semconv.UNACCOUNTED_US] == 0
        if call.body.get("n", 1) == 1:
            assert (sources["queue"], sources["prefill"]) == ("reported", "reported")


def test_times_agree_with_the_engines_own_span(traces: list[Trace]) -> None:
    """Queue, prefill and decode differ by less than a millisecond; tokens are the same."""
    checked = 0
    for trace in traces:
        call, spans, native = trace
        if call.outcome != "ok":
            continue
        assert {each["parent_span_id"] for each in native} == {request_span(spans)["span_id"]}
        if len(native) != 1:
            continue
        found, theirs = numbers_of(trace), native[0]["attributes"]
        for mine, its in NATIVE.items():
            assert found[mine] == pytest.approx(theirs[its] * 1e6, abs=MS)
        decode = found["otel_llm.decode_us"] + found.get("otel_llm.first_token_us", 0)
        assert decode == pytest.approx(theirs["gen_ai.latency.time_in_model_decode"] * 1e6, abs=MS)
        assert found["gen_ai.usage.output_tokens"] == theirs["gen_ai.usage.completion_tokens"]
        assert found["gen_ai.usage.input_tokens"] == theirs["gen_ai.usage.prompt_tokens"]
        checked += 1
    assert checked == 7


def test_several_answers(traces: list[Trace]) -> None:
    """One request of three sequences, all tokens."""
    several = [numbers_of(each) for each in traces if each[0].body.get("n") == 3]
    assert len(several) == 2
    for found in several:
        assert found["gen_ai.usage.output_tokens"] == 72
        assert found["gen_ai.response.finish_reasons"] == ["length"] * 3


def test_requests_that_were_given_up_say_where_their_time_went(traces: list[Trace]) -> None:
    """Left after the first token, or before any answer: both were in decode."""
    left = [each for each in traces if each[0].outcome == "cancelled"]
    assert len(left) == 2
    for each in left:
        found = numbers_of(each)
        assert found["otel_llm.queue_us"] >= 0
        assert found["otel_llm.prefill_us"] > 0
        assert found[semconv.ENDED_IN] == "decode"


def test_the_state_of_the_replica(traces: list[Trace]) -> None:
    """Running and waiting requests, cache use and tokens of the step, at both ends."""
    found = numbers_of(traces[0])
    for names in (semconv.REPLICA_WHEN_QUEUED, semconv.REPLICA_WHEN_FINISHED):
        assert found[names.running] >= 0
        assert found[names.waiting] >= 0
        assert 0 <= found[names.kv_cache_percent] <= 100
    # A step without an output has none: before the first request, or after an abort.
    batches = [numbers_of(each).get(semconv.REPLICA_WHEN_FINISHED.batch_tokens) for each in traces]
    assert max(each or 0 for each in batches) > 0


def test_preemptions(engine: vllm.Vllm, backend: jaeger.Jaeger, traces: list[Trace]) -> None:
    """This vLLM counts no preemptions, but tells of each."""
    assert semconv.PREEMPTIONS not in numbers_of(traces[0])
    body = completion(prompt="Grow", max_tokens=2500, stream=True, vllm_xargs=TOGETHER)
    growing = asyncio.run(sent(engine.url, [Call(COMPLETIONS, body) for _ in range(3)]))
    found = [numbers_of(read(backend, call)) for call in growing]
    assert {each[semconv.OUTCOME] for each in found} == {"ok"}
    preempted = [each for each in found if each.get(semconv.PREEMPTIONS)]
    assert preempted
    for each in preempted:
        assert each[semconv.UNACCOUNTED_US] == 0
        assert 0 < each[semconv.part("decode.preempted_us")] <= each["otel_llm.decode_us"]


def test_a_queue(engine: vllm.Vllm, backend: jaeger.Jaeger) -> None:
    """Who leaves the queue has no prefill."""
    # Prompts of tokens: 19 and 20 of the cache's blocks of 128 are all but the reserved one.
    filling = [Call(COMPLETIONS, completion(prompt=[9] * n, **HELD)) for n in (2400, 2500)]
    late = Call(COMPLETIONS, completion(prompt=[10] * 2400), "cancelled")

    async def given_up() -> None:
        async with held(engine, filling):
            waiting = asyncio.create_task(sent(engine.url, [late]))
            await reached(engine, "num_requests_waiting", 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(given_up())
    left = numbers_of(read(backend, late))
    assert left[semconv.OUTCOME] == "cancelled"
    assert not {"otel_llm.prefill_us", "otel_llm.decode_us", semconv.TTFT_US} & set(left)


def test_nothing_was_logged(engine: vllm.Vllm, traces: list[Trace]) -> None:
    """No hook failed, and this vLLM is not too old."""
    log = engine.log.read_text()
    assert "telemetry failed" not in log
    assert "is older than" not in log


def test_offline() -> None:
    """`LLM.generate` and `chat`: batches, requests with the engine's phases, several answers."""
    found = seen("offline", version=vllm.OLDEST)
    names = [(each["name"], len(found.children[each["id"]])) for each in found.roots()]
    assert names == [
        ("batch text_completion tiny", 2),
        ("batch text_completion tiny", 1),
        ("batch chat tiny", 1),
        ("batch text_completion tiny", 1),
    ]
    for batch in found.roots()[:3]:
        for request in found.children[batch["id"]]:
            phases = ["preprocess", "queue", "prefill", "decode", "delivery"]
            assert found.phases(request) == [f"llm.{each}" for each in phases]
            assert tiles(request)
            assert "queue=reported;prefill=reported" in request["attributes"][semconv.SOURCES]
            assert request["attributes"]["gen_ai.usage.output_tokens"] == 12
    assert found.engine["otel_llm.engine.version"].startswith(vllm.OLDEST)


def test_pooling() -> None:
    """`LLM.embed` and `score`: queue and prefill, and no tokens."""
    found = seen("pooling", version=vllm.OLDEST)
    names = [(each["name"], len(found.children[each["id"]])) for each in found.roots()]
    assert names == [("batch embeddings tiny", 2), ("batch score tiny", 4)]
    for batch in found.roots():
        for request in found.children[batch["id"]]:
            phases = ["preprocess", "queue", "prefill", "delivery"]
            assert found.phases(request) == [f"llm.{each}" for each in phases]
            assert tiles(request)
            assert semconv.TTFT_US not in request["attributes"]


def test_async() -> None:
    """`AsyncLLM` in a script: to the end, closed early, refused."""
    found = seen("async", version=vllm.OLDEST)
    outcomes = {
        each["attributes"][semconv.REQUEST_ID]: each["attributes"][semconv.OUTCOME]
        for each in found.roots()
    }
    assert outcomes == {"whole": "ok", "closed": "abandoned", "refused": "rejected"}
    whole = found.roots()[0]
    assert found.phases(whole)[1:4] == ["llm.queue", "llm.prefill", "llm.decode"]
    assert tiles(whole)
    assert whole["attributes"][semconv.REPLICA_WHEN_FINISHED.running] == 0
