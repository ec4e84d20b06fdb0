"""What callers of vLLM's engine see is the same with and without us; and on, and off."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import otel_llm
from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.adapters.builders import PHASES, generate
from tests.adapters.conftest import instrument
from tests.emit.builders import attached, opened, written
from tests.fakes import vllm, vllm_offline, vllm_state
from tests.fakes.vllm import AsyncLLM, RequestOutput, SamplingParams

NAME = "cmpl-b03c1c1a3fd8d376"
"""A request id as vLLM makes them."""


class TestTransparency:
    """What the caller sees is the same with and without us."""

    @pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(n=2)])
    async def test_the_same_outputs(
        self, captured: CapturedTelemetry, engine: AsyncLLM, params: SamplingParams
    ) -> None:
        """The very objects, in order."""
        taken = await generate(captured, engine, params)
        assert [id(each) for each in engine.yielded] == [id(each) for each in taken]

    async def test_the_same_laziness(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine is never ahead of its caller."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            for number in range(1, 4):
                await anext(outputs)
                assert number == len(engine.yielded)
            await outputs.aclose()
        live.finish()

    async def test_outside_a_request(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A call that belongs to no request is one itself, and yields the engine's very outputs."""
        outputs = engine.generate("hi", SamplingParams(), "r")
        assert inspect.isasyncgen(outputs)
        taken = [each async for each in outputs]
        assert [id(each) for each in engine.yielded] == [id(each) for each in taken]
        assert len(captured.spans) == 1 + len(PHASES) - 1

    def test_signature(self, engine: AsyncLLM) -> None:
        """Frameworks that look at it see the original's."""
        assert inspect.signature(AsyncLLM.generate) == inspect.signature(type(engine).generate)

    async def test_wrong_arguments(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine's own complaint."""
        live = opened(captured)
        with attached(live.context), pytest.raises(TypeError, match="sampling_params"):
            engine.generate("hi")
        live.finish()

    @pytest.mark.parametrize("positional", [True, False])
    async def test_positional_and_named_arguments(
        self, captured: CapturedTelemetry, engine: AsyncLLM, positional: bool
    ) -> None:
        """Both ways of calling are understood."""
        live = opened(captured)
        params = SamplingParams(n=2)
        with attached(live.context):
            outputs = (
                engine.generate("hi", params, NAME)
                if positional
                else engine.generate(request_id=NAME, prompt="hi", sampling_params=params)
            )
            assert len([each async for each in outputs]) == 8
        live.finish()
        assert written(captured)[semconv.REQUEST_ID] == NAME

    async def test_nothing_is_kept_alive(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """After the request, outputs and statistics can be freed."""
        await generate(captured, engine)
        outputs = [weakref.ref(each) for each in engine.yielded]
        engine.yielded.clear()
        gc.collect()
        assert [each() for each in outputs] == [None] * 4

    async def test_many_at_once(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM]
    ) -> None:
        """Requests that overlap keep to their own spans."""
        engines = [engine_type(ManualClock()) for _ in range(10)]
        await asyncio.gather(*(generate(captured, each) for each in engines))
        counts = [each.attributes.get(semconv.OUTPUT_TOKENS) for each in captured.spans]
        assert [count for count in counts if count is not None] == [4] * 10

    @pytest.mark.parametrize("n", [1, 2])
    async def test_an_output_without_sequences(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        monkeypatch: pytest.MonkeyPatch,
        n: int,
    ) -> None:
        """Whatever the engine yields goes through, and the rest is still written."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        odd = RequestOutput("r", [1], [], False, metrics=vllm.RequestStateStats())
        engine._shown = lambda *_given: [odd]  # type: ignore[method-assign]
        live, taken = opened(captured), 0
        with attached(live.context), suppress(IndexError):
            async for _ in engine.generate("hi", SamplingParams(n=n), "r"):
                taken += 1
        live.finish()
        assert (taken, semconv.OUTCOME in written(captured)) == (4, True)


class TestSwitching:
    """On, on again, and off."""

    async def test_twice_is_once(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """One span, one sample."""
        otel_llm.instrument(**captured.providers)
        await generate(captured, engine)
        assert len(captured.spans) == 1 + len(PHASES)
        assert captured.points(semconv.SERVER_DURATION)[0].count == 1

    def test_off(self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch) -> None:
        """The original functions themselves are back, every one of them."""
        vllm_offline.installed(monkeypatch)
        owners = (
            sys.modules["vllm.v1.engine.async_llm"].AsyncLLM,
            vllm_state.OutputProcessor,
            vllm_state.IterationStats,
            vllm_state.StatLoggerManager,
            vllm_offline.LLMEngine,
            vllm_offline.LLM,
            vllm_offline.PoolingOfflineMixin,
        )
        before = [dict(vars(each)) for each in owners]
        instrument(captured)
        patched = [
            name
            for each, earlier in zip(owners, before, strict=True)
            for name, value in vars(each).items()
            if earlier[name] is not value
        ]
        names = "generate encode __init__ add_request update_from_events record step __init__"
        offline = "generate chat __init__ encode embed classify score"
        assert sorted(patched) == sorted(f"{names} {offline}".split())
        otel_llm.uninstrument()
        assert before == [dict(vars(each)) for each in owners]

    async def test_off_with_functions_that_were_kept(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
    ) -> None:
        """Those of `LLM` and of the private classes do nothing of ours either."""
        vllm_offline.installed(monkeypatch)
        instrument(captured)
        llm = vllm_offline.LLM("tiny", clock=clock, disable_log_stats=False)
        kept, record = llm.generate, llm.llm_engine.logger_manager.record
        otel_llm.uninstrument()
        record(vllm_state.SchedulerStats(3), None)
        assert len(kept(["a"])) == 1
        assert (captured.spans, vars(llm.llm_engine.logger_manager)) == ([], {})

    async def test_off_with_a_function_that_was_kept(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """It goes on, as the engine's own."""
        kept = engine.generate
        otel_llm.uninstrument()
        live = opened(captured)
        with attached(live.context):
            assert kept("hi", SamplingParams(), "r").ag_code.co_filename == vllm.__file__
        live.finish()

    async def test_base_and_subclass(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM], clock: ManualClock
    ) -> None:
        """A subclass that calls its base is one call of the engine."""

        class Derived(engine_type):  # type: ignore[misc, valid-type]
            """An engine of somebody's own."""

            async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async for output in super().generate(*args, **kwargs):
                    yield output

        await generate(captured, Derived(clock))
        assert written(captured)[semconv.OUTPUT_TOKENS] == 4
