"""Every way out of vLLM's engine, below a request that is open."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.adapters.builders import generate, lengths
from tests.emit.builders import NAME, attached, opened, written
from tests.fakes import vllm
from tests.fakes.vllm import AsyncLLM, Plan, SamplingParams


class TestEndings:
    """Every way out of the engine."""

    async def test_cancelled_in_the_middle(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """The cancellation goes through, the engine is told, phases are kept."""
        engine.plan = Plan(wait_at=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(generate(captured, engine), 0.02)
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.INCOMPLETE]) == ("cancelled", True)
        assert (engine.closed, lengths(found)["queue"]) == ([f"cmpl-{0:016x}"], 50)

    @pytest.mark.parametrize(
        ("error", "at", "outcome", "code"),
        [
            (vllm.EngineGenerateError("secret"), 2, "error", StatusCode.ERROR),
            (vllm.EngineGenerateError("secret"), 0, "error", StatusCode.ERROR),
            (vllm.VLLMValidationError("secret"), 0, "rejected", StatusCode.UNSET),
            (vllm.GracefulHTTPError("secret"), 0, "rejected", StatusCode.UNSET),
            (ValueError("secret"), 0, "rejected", StatusCode.UNSET),
            (vllm.VLLMValidationError("secret"), 2, "error", StatusCode.ERROR),
        ],
    )
    async def test_errors(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        error: Exception,
        at: int,
        outcome: str,
        code: StatusCode,
    ) -> None:
        """The same object reaches the caller; its class is the type, its message nowhere."""
        engine.plan = Plan(fail_at=at, error=error)
        with pytest.raises(type(error)) as raised:
            await generate(captured, engine)
        assert error is raised.value
        span = captured.span(NAME)
        assert (outcome, code) == (span.attributes[semconv.OUTCOME], span.status.status_code)
        assert span.attributes[semconv.ERROR_TYPE].endswith(type(error).__name__)
        assert "secret" not in span.to_json()

    async def test_closed_early(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine's generator is closed, once, before `aclose` returns."""
        live = opened(captured)
        with attached(live.context):
            async with aclosing(engine.generate("hi", SamplingParams(), "r")) as outputs:
                await anext(outputs)
        assert engine.closed == ["r"]
        live.finish()
        assert written(captured)[semconv.OUTCOME] == "abandoned"

    async def test_never_started(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A generator that nobody asks starts nothing."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            assert engine.started == []
            await outputs.aclose()
        assert (engine.started, engine.closed) == ([], [])
        live.finish()

    def test_dropped_with_its_request(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A call that never began does not keep its request alive until a collection."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
        gc.disable()
        try:
            del live, outputs
            assert written(captured)[semconv.OUTCOME] == "abandoned"
        finally:
            gc.enable()

    async def test_dropped(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A generator that is let go in the middle is closed by the event loop."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            await anext(outputs)
            del outputs
        await asyncio.sleep(0.01)
        assert engine.closed == ["r"]
        live.finish()

    async def test_the_request_ends_first(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """A peer that leaves ends the span while the engine is still at work."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            await anext(outputs)
            live.recorder.ending(peer_gone=True)
            live.finish()
            assert len([each async for each in outputs]) == 3
        found = written(captured)
        assert (found[semconv.OUTCOME], lengths(found)["queue"]) == ("cancelled", 50)
