"""Calls of vLLM's engine that belong to no open request: each is a request itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otel_llm import config, guard, semconv
from otel_llm.adapters.vllm import describe
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.adapters.builders import FINAL_ONLY, lengths, sources
from tests.emit.builders import attached, opened, written
from tests.fakes import vllm, vllm_state
from tests.fakes.vllm import AsyncLLM, Plan, PoolingParams, SamplingParams
from tests.servers.builders import PARENT

NAME = "text_completion tiny"
PHASES = {"preprocess": 4, "queue": 50, "prefill": 200, "decode": 30, "delivery": 0}


async def ask(engine: AsyncLLM, params: SamplingParams | None = None, **more: Any) -> list[Any]:
    """All outputs of a call that nobody has announced."""
    return [each async for each in engine.generate("hi", params or SamplingParams(), "r", **more)]


class TestGenerate:
    """A script, or a server that is not ours."""

    @pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(output_kind=FINAL_ONLY)])
    async def test_phases(
        self, captured: CapturedTelemetry, engine: AsyncLLM, params: SamplingParams
    ) -> None:
        """From the first read to the last output, streamed or not."""
        await ask(engine, params)
        found = written(captured, NAME)
        assert lengths(found) == PHASES
        assert sources(found)["queue"] == "reported"
        assert (found[semconv.OUTCOME], found[semconv.OUTPUT_TOKENS]) == ("ok", 4)

    async def test_span(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Seen from the engine, inside one process, under the name that the model is served by."""
        await ask(engine)
        span, found = captured.span(NAME), written(captured, NAME)
        assert (span.kind, span.parent) == (SpanKind.INTERNAL, None)
        names = (semconv.SIDE, semconv.PROVIDER, semconv.REQUEST_MODEL, semconv.REQUEST_ID)
        assert [found[name] for name in names] == ["engine", "vllm", "tiny", "r"]

    async def test_parameters(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As a server would write them; `top_k` 0 means that all tokens are considered."""
        await ask(engine, SamplingParams(n=2, temperature=0.5, seed=3))
        found = written(captured, NAME)
        names = (semconv.TEMPERATURE, semconv.MAX_TOKENS, semconv.SEED, semconv.CHOICE_COUNT)
        assert [found[name] for name in names] == [0.5, 16, 3, 2]
        assert semconv.TOP_K not in found

    async def test_metrics(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As those of any server."""
        await ask(engine)
        assert [each.count for each in captured.points(semconv.SERVER_TTFT)] == [1]

    @pytest.mark.parametrize("asked", [True, False])
    async def test_content(self, engine: AsyncLLM, clock: ManualClock, asked: bool) -> None:
        """Prompt and answer, if they are asked for."""
        captured = captured_telemetry(EmitSettings(capture_content=asked), clock=clock)
        config.RUNTIME.telemetry = captured.telemetry
        await ask(engine)
        found = written(captured, NAME)
        assert ('"hi"' in found.get(semconv.INPUT_MESSAGES, "")) is asked
        assert ('"xxxx"' in found.get(semconv.OUTPUT_MESSAGES, "")) is asked

    async def test_below_an_open_request(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """It is part of that request, and none of its own."""
        live = opened(captured)
        with attached(live.context):
            await ask(engine)
        live.finish()
        assert NAME not in [each.name for each in captured.spans]

    async def test_encode(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """An embedding: prefilled and answered."""
        async for _ in engine.encode("hi", PoolingParams("embed"), "r"):
            pass
        found = written(captured, "embeddings tiny")
        assert lengths(found) == {"preprocess": 4, "queue": 50, "prefill": 200, "delivery": 0}
        assert found[semconv.OUTCOME] == "ok"

    @pytest.mark.parametrize(
        ("task", "operation"),
        [
            ("classify", "classify"),
            ("score", "score"),
            ("token_embed", "pooling"),
            (None, "pooling"),
        ],
    )
    async def test_what_encode_is_for(
        self, captured: CapturedTelemetry, engine: AsyncLLM, task: str | None, operation: str
    ) -> None:
        """The task of its parameters, where the conventions have a word for it."""
        async for _ in engine.encode("hi", PoolingParams(task), "r"):
            pass
        assert written(captured, f"{operation} tiny")[semconv.OPERATION] == operation


class TestParents:
    """Whose request it is."""

    async def test_of_the_current_span(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Whoever calls, before whoever is named in headers."""
        with captured.telemetry.tracer.start_as_current_span("caller") as caller:
            await ask(engine, trace_headers={"traceparent": PARENT})
        parent = captured.span(NAME).parent
        assert parent is not None
        assert caller.get_span_context().span_id == parent.span_id

    async def test_of_headers(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A server that is not ours gives its caller's headers to the engine."""
        await ask(engine, trace_headers={"traceparent": PARENT})
        parent = captured.span(NAME).parent
        assert parent is not None
        assert PARENT.split("-")[1:3] == [f"{parent.trace_id:032x}", f"{parent.span_id:016x}"]

    @pytest.mark.parametrize("headers", [None, {"traceparent": PARENT, "tracestate": "a=b"}])
    async def test_of_vllms_own_spans(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        headers: Mapping[str, str] | None,
    ) -> None:
        """An engine that traces natively is told of our span, in a copy of the headers."""
        given = dict(headers) if headers else None
        engine.observability_config = SimpleNamespace(otlp_traces_endpoint="localhost:4317")
        await ask(engine, trace_headers=given)
        ours = captured.span(NAME).context
        assert (engine.headers or {})["traceparent"].split("-")[2] == f"{ours.span_id:016x}"
        assert given == headers

    async def test_phase_spans_of_vllms_own(
        self, captured: CapturedTelemetry, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A vLLM that traces, and writes them itself: ours would be doubles."""
        monkeypatch.setattr(describe, "installed_makes_phase_spans", lambda: True)
        engine.observability_config = SimpleNamespace(otlp_traces_endpoint="localhost:4317")
        await ask(engine)
        assert captured.tree() == [NAME]

    async def test_of_no_native_spans(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Otherwise the engine gets the headers that were given."""
        headers = {"traceparent": PARENT}
        await ask(engine, trace_headers=headers)
        assert engine.headers is headers

    async def test_nothing_is_attached(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Between outputs the caller's context is its own."""
        outputs = engine.generate("hi", SamplingParams(), "r")
        async for _ in outputs:
            assert trace.get_current_span() is trace.INVALID_SPAN


class TestEndings:
    """Every way out."""

    async def test_never_read(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A generator that nobody asks is no request."""
        await engine.generate("hi", SamplingParams(), "r").aclose()
        assert (engine.started, captured.spans) == ([], [])

    async def test_closed_early(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The reader left; the engine's generator is closed first."""
        async with aclosing(engine.generate("hi", SamplingParams(), "r")) as outputs:
            await anext(outputs)
        assert engine.closed == ["r"]
        assert written(captured, NAME)[semconv.OUTCOME] == "abandoned"

    async def test_dropped(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As if it were closed."""
        outputs = engine.generate("hi", SamplingParams(), "r")
        await anext(outputs)
        del outputs
        await asyncio.sleep(0.01)
        assert written(captured, NAME)[semconv.OUTCOME] == "abandoned"

    async def test_no_reason_for_the_end(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """An engine that stops giving outputs has come to its end."""
        engine.plan = Plan(finish_reason="")
        await ask(engine)
        found = written(captured, NAME)
        assert (found[semconv.OUTCOME], semconv.INCOMPLETE in found) == ("ok", False)

    async def test_cancelled(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The cancellation goes through; what is known is kept."""
        engine.plan = Plan(wait_at=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(engine), 0.02)
        found = written(captured, NAME)
        assert (found[semconv.OUTCOME], lengths(found)["queue"]) == ("cancelled", 50)

    @pytest.mark.parametrize(
        ("error", "outcome", "code"),
        [
            (vllm.EngineGenerateError("secret"), "error", StatusCode.ERROR),
            (vllm.VLLMValidationError("secret"), "rejected", StatusCode.UNSET),
        ],
    )
    @pytest.mark.parametrize("name", ["generate", "encode"])
    async def test_errors(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        error: Exception,
        outcome: str,
        code: StatusCode,
        name: str,
    ) -> None:
        """The same object reaches the caller; a refusal is no failure of the engine."""
        engine.plan = Plan(fail_at=0, error=error)
        params = SamplingParams() if name == "generate" else PoolingParams()
        with pytest.raises(type(error)) as raised:
            await anext(getattr(engine, name)("hi", params, "r"))
        assert error is raised.value
        span = next(each for each in captured.spans if each.name.endswith(" tiny"))
        assert (outcome, code) == (span.attributes[semconv.OUTCOME], span.status.status_code)
        assert "secret" not in span.to_json()

    async def test_a_failed_embedding_is_no_stream(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """It has one result or none, so nothing of it is incomplete."""
        engine.plan = Plan(fail_at=0, error=vllm.EngineGenerateError("secret"))
        with pytest.raises(vllm.EngineGenerateError):
            await anext(engine.encode("hi", PoolingParams(), "r"))
        assert semconv.INCOMPLETE not in written(captured, "embeddings tiny")


class TestCalls:
    """How the call is made."""

    @pytest.mark.parametrize(
        "arguments",
        [("hi",), ("hi", SamplingParams(), "r", "text"), ("hi", SamplingParams(), "r", 1, 2)],
        ids=len,
    )
    @pytest.mark.parametrize("strict", ["0", "1"])
    async def test_wrong_arguments(
        self,
        engine: AsyncLLM,
        monkeypatch: pytest.MonkeyPatch,
        arguments: tuple[Any, ...],
        strict: str,
    ) -> None:
        """The engine's own complaint, at once."""
        monkeypatch.setenv("OTEL_LLM_STRICT", strict)
        with pytest.raises(TypeError):
            engine.generate(*arguments)

    @pytest.mark.parametrize("positional", [True, False])
    async def test_positional_and_named_arguments(
        self, captured: CapturedTelemetry, engine: AsyncLLM, positional: bool
    ) -> None:
        """Both ways of calling are understood."""
        outputs = (
            engine.encode("hi", PoolingParams(), "id-1", vllm.LoRARequest("legal"))
            if positional
            else engine.encode(
                request_id="id-1",
                prompt="hi",
                pooling_params=PoolingParams(),
                lora_request=vllm.LoRARequest("legal"),
            )
        )
        assert len([each async for each in outputs]) == 1
        found = written(captured, "embeddings tiny")
        assert (found[semconv.REQUEST_ID], found[semconv.LORA]) == ("id-1", "legal")

    async def test_telemetry_that_fails(
        self, captured: CapturedTelemetry, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every output still comes, and the failure is counted."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        monkeypatch.setattr(captured.telemetry, "start", None)
        assert len(await ask(engine)) == 4
        assert guard.failures["vllm.direct"] == 1

    async def test_no_telemetry(self, engine: AsyncLLM) -> None:
        """Where providers could not be made the engine is left to itself."""
        config.uninstrument()
        config.install(config.rows_of(["vllm"]), config.host(lambda: None))
        outputs = type(engine).generate(engine, "hi", SamplingParams(), "r")
        assert outputs.ag_code.co_filename == vllm.__file__

    async def test_many_at_once(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM]
    ) -> None:
        """Requests that overlap keep to their own spans."""
        engines = [engine_type(ManualClock()) for _ in range(10)]
        for number, each in enumerate(engines):
            each.plan = replace(each.plan, tokens=2 + number)
        await asyncio.gather(*map(ask, engines))
        counts = [each.attributes.get(semconv.OUTPUT_TOKENS) for each in captured.spans]
        assert sorted(each for each in counts if each is not None) == list(range(2, 12))

    async def test_a_model_without_a_served_name(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """Its path stands for it."""
        model = SimpleNamespace(model="org/tiny", served_model_name=None)
        engine.vllm_config = vllm_state.configuration(model_config=model)
        engine.model_config = model
        await ask(engine)
        assert captured.span("text_completion org/tiny").name
