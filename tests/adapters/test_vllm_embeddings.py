"""Requests that generate nothing: embeddings, scores, a rerank of several calls."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.adapters.builders import encode, lengths, sources
from tests.adapters.conftest import instrument
from tests.emit.builders import attached, opened, written
from tests.fakes import vllm, vllm_offline
from tests.fakes.vllm import AsyncLLM, Plan, PoolingParams

NAME = "embeddings tiny"


@dataclass
class RequestError:
    """What is wrong with one request, while the engine is well."""

    code: str | None
    message: str = "secret"


async def test_phases(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Queue and prefill as the engine has them, then delivery; no phase of tokens."""
    await encode(captured, engine)
    found = written(captured, NAME)
    assert lengths(found) == {"preprocess": 4, "queue": 50, "prefill": 200, "delivery": 1}
    known = sources(found)
    assert (known["queue"], known["prefill"]) == ("reported", "reported")
    assert found[semconv.UNACCOUNTED_US] == 0


async def test_no_token_is_known(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Neither a first one, nor a time per token, nor a count of what was generated."""
    await encode(captured, engine)
    names = {semconv.TTFT_US, semconv.TPOT_US, semconv.OUTPUT_TOKENS, semconv.ITL_P50_US}
    assert not names & set(written(captured, NAME))
    assert captured.points(semconv.SERVER_TTFT) == []


async def test_prompt_tokens(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Those of the prompt, and those of them that were cached."""
    engine.plan = Plan(cached=3)
    await encode(captured, engine)
    found = written(captured, NAME)
    assert (found[semconv.INPUT_TOKENS], found[semconv.CACHE_READ_TOKENS]) == (7, 3)


async def test_outcome(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """A result is the whole answer."""
    await encode(captured, engine)
    found = written(captured, NAME)
    assert found[semconv.OUTCOME] == "ok"
    assert not {semconv.INCOMPLETE, semconv.FINISH_REASONS} & set(found)


async def test_without_statistics(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """From the hand-over to the result nothing is known, and nothing is guessed."""
    engine.log_stats = False
    await encode(captured, engine)
    found = written(captured, NAME)
    assert lengths(found) == {"preprocess": 0, "delivery": 1}
    assert found[semconv.UNACCOUNTED_US] == 254_000


async def test_without_private_functions(
    captured: CapturedTelemetry, bare_engine: AsyncLLM
) -> None:
    """Pooling outputs carry no times, so that only our own are left."""
    await encode(captured, bare_engine)
    assert lengths(written(captured, NAME)) == {"preprocess": 0, "delivery": 1}


async def test_several_inputs_side_by_side(
    captured: CapturedTelemetry, engine_type: type[AsyncLLM]
) -> None:
    """A rerank is one request: the first one's wait, prefilled until the last result."""
    engines = [engine_type(ManualClock()) for _ in range(3)]
    for number, each in enumerate(engines):
        each.plan = Plan(queue=0.050 * (number + 1))
    live = opened(captured, operation="rerank")
    live.recorder.streaming = False
    with attached(live.context):
        await asyncio.gather(*map(_one, engines))
    live.finish(ManualClock().monotonic_ns() + 400_000_000)
    found = written(captured, "rerank tiny")
    assert lengths(found) == {"preprocess": 4, "queue": 50, "prefill": 300, "delivery": 46}
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTCOME]) == (21, "ok")


async def test_several_inputs_in_turns(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """The time to the last result belongs to the request, whichever call it was for."""
    await encode(captured, engine, calls=3)
    found = written(captured, NAME)
    assert (lengths(found)["queue"], found[semconv.OUTCOME]) == (50, "ok")
    assert found[semconv.E2E_US] == 3 * 254_000 + 1_000
    assert found[semconv.UNACCOUNTED_US] == 0


async def test_a_failure_after_a_result(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """It ended in prefill; there is no decode that could have been open."""
    live = opened(captured, operation="rerank")
    live.recorder.streaming = False
    error = vllm.EngineGenerateError("secret")
    with attached(live.context):
        await _one(engine)
        engine.plan = Plan(fail_at=0, error=error)
        with pytest.raises(vllm.EngineGenerateError):
            await _one(engine)
    live.finish()
    found = written(captured, "rerank tiny")
    assert (found[semconv.OUTCOME], found[semconv.ENDED_IN]) == ("error", "prefill")


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (RequestError("multimodal_cache_miss"), "multimodal_cache_miss"),
        (RequestError("no such: thing, /secret"), "RequestError"),
        (RequestError(None), "RequestError"),
    ],
)
async def test_an_output_that_is_an_error(
    captured: CapturedTelemetry,
    engine: AsyncLLM,
    monkeypatch: pytest.MonkeyPatch,
    error: RequestError,
    error_type: str,
) -> None:
    """VLLM gives an empty output with a reason, and raises nothing."""
    monkeypatch.setattr(vllm.PoolingRequestOutput, "error", error, raising=False)
    await encode(captured, engine)
    found = written(captured, NAME)
    assert (found[semconv.OUTCOME], found[semconv.ERROR_TYPE]) == ("error", error_type)
    assert "secret" not in captured.span(NAME).to_json()


def test_an_output_that_is_an_error_offline(
    captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """One of a list has failed, and the call has not."""
    vllm_offline.installed(monkeypatch)
    instrument(captured)
    error = RequestError("multimodal_cache_miss")
    monkeypatch.setattr(vllm.PoolingRequestOutput, "error", error, raising=False)
    vllm_offline.LLM("org/tiny", clock=clock).embed(["a"])
    found = written(captured, NAME)
    assert (found[semconv.OUTCOME], found[semconv.ERROR_TYPE]) == ("error", error.code)
    assert captured.span(f"batch {NAME}").status.status_code is StatusCode.UNSET


async def test_cancelled(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """The cancellation reaches the engine."""
    engine.plan = Plan(wait_at=0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(encode(captured, engine), 0.02)
    found = written(captured, NAME)
    assert (engine.closed, found[semconv.OUTCOME]) == (["r0"], "cancelled")


async def test_closed_early(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """The engine's generator is closed before `aclose` returns."""
    live = opened(captured, operation="embeddings")
    with attached(live.context):
        async with aclosing(engine.encode("hi", PoolingParams(), "r")) as outputs:
            await anext(outputs)
    live.finish()
    assert engine.closed == ["r"]


async def _one(engine: AsyncLLM) -> None:
    async for _ in engine.encode("hi", PoolingParams(), "r"):
        pass
