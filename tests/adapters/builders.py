"""Short ways to requests that call vLLM's engine, and to what was written of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from otel_llm.timeline import Phase
from tests.emit.builders import attached, opened
from tests.fakes.vllm import AsyncLLM, PoolingParams, RequestOutputKind, SamplingParams

DELTA, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
PHASES = {"preprocess": 4, "queue": 50, "prefill": 200, "decode": 30, "delivery": 1}
"""Of a request to an engine with the plan of `Plan`, in milliseconds."""


async def generate(
    captured: CapturedTelemetry,
    engine: AsyncLLM,
    params: SamplingParams | None = None,
    *,
    calls: int = 1,
    **more: Any,
) -> list[Any]:
    """One request that calls the engine and takes every output; its last byte comes 1 ms later."""
    params = params or SamplingParams()
    live = opened(captured)
    live.recorder.streaming = params.output_kind is DELTA
    taken: list[Any] = []
    with attached(live.context):
        try:
            for number in range(calls):
                outputs = engine.generate("hi", params, f"cmpl-{number:016x}", **more)
                taken.extend([output async for output in outputs])
        except BaseException as error:
            live.fail(error)
            raise
        finally:
            engine.clock.advance(0.001)
            live.finish()
    return taken


async def encode(
    captured: CapturedTelemetry, engine: AsyncLLM, *, calls: int = 1, **more: Any
) -> list[Any]:
    """One embeddings request of *calls* inputs, one after the other; its reply takes 1 ms."""
    live = opened(captured, operation="embeddings")
    live.recorder.streaming = False
    taken: list[Any] = []
    with attached(live.context):
        try:
            for number in range(calls):
                outputs = engine.encode("hi", PoolingParams(), f"r{number}", **more)
                taken.extend([output async for output in outputs])
        finally:
            engine.clock.advance(0.001)
            live.finish()
    return taken


def lengths(found: Mapping[str, Any]) -> dict[str, float]:
    """The phases of a summary in milliseconds."""
    names = {each.value: found.get(semconv.phase_us(each)) for each in Phase}
    return {name: us / 1000 for name, us in names.items() if us is not None}


def sources(found: Mapping[str, Any]) -> dict[str, str]:
    """How each phase of a summary is known."""
    return dict(each.split("=") for each in found[semconv.SOURCES].split(";"))
