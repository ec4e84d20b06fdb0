"""Speculative decoding: tokens that were drafted for a request, and those accepted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.adapters.builders import FINAL_ONLY, encode, generate
from tests.emit.builders import attached, opened, written
from tests.fakes import vllm
from tests.fakes.vllm import AsyncLLM, Plan, RequestOutputKind, SamplingParams
from tests.fakes.vllm_state import RequestSpecDecodeMetrics

DRAFTS = RequestSpecDecodeMetrics(3, [1, 2, 0, 4], 21)
"""Of seven steps one accepted none of three tokens, two accepted one, four all three."""
NAMES = (semconv.DRAFT_TOKENS, semconv.ACCEPTED_TOKENS)


def drafts(captured: CapturedTelemetry) -> list[Any]:
    """Both counts as they were written."""
    return [written(captured).get(name) for name in NAMES]


@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_of_a_request(
    captured: CapturedTelemetry, engine: AsyncLLM, kind: RequestOutputKind
) -> None:
    """As the last output tells."""
    engine.plan = Plan(drafts=DRAFTS)
    await generate(captured, engine, SamplingParams(output_kind=kind))
    assert drafts(captured) == [21, 14]


async def test_of_several_sequences(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Together, where one output tells of all."""
    engine.plan = Plan(drafts=DRAFTS)
    await generate(captured, engine, SamplingParams(n=2, output_kind=FINAL_ONLY))
    assert drafts(captured) == [42, 28]


async def test_of_some_sequences(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """A count of some would be taken for that of all."""
    engine.plan = Plan(drafts=DRAFTS)
    await generate(captured, engine, SamplingParams(n=2))
    assert drafts(captured) == [None, None]


async def test_of_several_prompts(captured: CapturedTelemetry, engine_type: type[AsyncLLM]) -> None:
    """Added up over the calls of the request."""
    engines = [engine_type(ManualClock()) for _ in range(2)]
    live = opened(captured)
    with attached(live.context):
        for each in engines:
            each.plan = Plan(drafts=DRAFTS)
        await asyncio.gather(*map(_ask, engines))
    live.finish()
    assert drafts(captured) == [42, 28]


async def test_none(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """An engine that drafts nothing has no counts."""
    await generate(captured, engine)
    assert drafts(captured) == [None, None]


async def test_of_an_embedding(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """It has none either."""
    await encode(captured, engine)
    assert not set(NAMES) & set(written(captured, "embeddings tiny"))


async def test_of_a_failure(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Without the last output nothing is known."""
    engine.plan = Plan(drafts=DRAFTS, fail_at=2, error=vllm.EngineGenerateError())
    with pytest.raises(vllm.EngineGenerateError):
        await generate(captured, engine)
    assert drafts(captured) == [None, None]


async def _ask(engine: AsyncLLM) -> None:
    async for _ in engine.generate("hi", SamplingParams(), "r"):
        pass
