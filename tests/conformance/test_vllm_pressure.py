"""A real vLLM server under pressure: preemption, cached prompts, a full queue, a dead engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_llm import semconv
from tests.conformance.requests import HELD, HOLDING, Call, chat, completion, held, sent
from tests.conformance.test_vllm_jaeger import (
    CHAT,
    COMPLETIONS,
    REPO,
    backend,
    has_server_span,
    request_span,
)
from tests.services import jaeger, vllm
from tests.services.process import poll

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
__all__ = ["backend"]


@pytest.fixture(scope="module")
def engine(
    tmp_path_factory: pytest.TempPathFactory,
    backend: jaeger.Jaeger,
) -> Iterator[vllm.Vllm]:
    """VLLM with room for little more than one long sequence, and a short queue."""
    work = tmp_path_factory.mktemp("vllm")
    vllm.overlay(HOLDING, work / "overlay")
    with vllm.Vllm.start(
        work,
        overlay=vllm.overlay(REPO, work / "overlay"),
        args=["--num-gpu-blocks-override=40", "--max-num-queued-reqs=8"],
        env=vllm.exporting(backend.otlp_http),
    ) as server:
        yield server


TOGETHER = {"hold_after": 1, "hold_until": 3}
"""Three requests with this start to grow when all of them run."""


def read(store: jaeger.Jaeger, calls: list[Call]) -> list[dict[str, Any]]:
    """The request spans of *calls*, as Jaeger has them."""
    return [
        request_span(store.wait_for(call.trace_id, has_server_span, timeout=30)) for call in calls
    ]


def test_a_second_time_the_prompt_is_cached(
    engine: vllm.Vllm,
    backend: jaeger.Jaeger,
) -> None:
    """Cached prompt tokens are on the span: none known at first, then all whole blocks."""
    body = completion(prompt="word " * 400, max_tokens=2)
    calls = [Call(COMPLETIONS, body) for _ in range(2)]
    asyncio.run(sent(engine.url, calls, at_once=False))
    first, second = (each["attributes"][semconv.CACHE_READ_TOKENS] for each in read(backend, calls))
    assert first == 0
    assert second > 0


def test_preempted_requests_say_so(
    engine: vllm.Vllm,
    backend: jaeger.Jaeger,
) -> None:
    """Three sequences that outgrow the KV cache: some are preempted, all add up."""
    body = completion(prompt="Grow", max_tokens=2500, stream=True, vllm_xargs=TOGETHER)
    calls = asyncio.run(sent(engine.url, [Call(COMPLETIONS, body) for _ in range(3)]))
    spans = read(backend, calls)
    assert sum(each["attributes"][semconv.PREEMPTIONS] for each in spans) > 0
    for each in spans:
        assert each["attributes"][semconv.OUTCOME] == "ok"
        assert each["attributes"][semconv.UNACCOUNTED_US] == 0
    preempted = semconv.part("decode.preempted_us")
    assert any(
        0 < each["attributes"].get(preempted, 0) <= each["attributes"]["otel_llm.decode_us"]
        for each in spans
    )


def test_a_full_queue_rejects(
    engine: vllm.Vllm,
    backend: jaeger.Jaeger,
) -> None:
    """While eight are open more are refused with 503: rejected; ERROR on the server's span."""

    async def over_the_limit() -> list[Call]:
        async with held(engine, [Call(CHAT, chat(**HELD)) for _ in range(8)]):
            return await sent(engine.url, [Call(CHAT, chat()) for _ in range(3)])

    refused = asyncio.run(over_the_limit())
    assert [call.status for call in refused] == [503] * 3
    for each in read(backend, refused):
        numbers = each["attributes"]
        assert numbers[semconv.OUTCOME] == "rejected"
        assert semconv.TTFT_US not in numbers
        assert each["status_code"] == 2


def test_a_dead_engine_ends_its_requests(
    engine: vllm.Vllm,
    backend: jaeger.Jaeger,
) -> None:
    """When the engine's process dies, open requests end as errors and are still exported."""
    streamed, whole = (Call(CHAT, chat(stream=stream, **HELD)) for stream in (True, False))

    async def killed() -> None:
        async with held(engine, [streamed, whole]) as sending:
            await asyncio.to_thread(poll, lambda: streamed.text, bool, limit=60)
            os.kill(_engine_core(engine.pid), signal.SIGKILL)
            await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(killed())
    for each in read(backend, [streamed, whole]):
        numbers = each["attributes"]
        assert numbers[semconv.OUTCOME] == "error"
        assert "EngineDeadError" in numbers[semconv.ERROR_TYPE]
        assert each["status_code"] == 2


def _engine_core(parent: int) -> int:
    """The process id of the engine below the API server *parent*."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f"\nPPid:\t{parent}\n" in text and "VLLM::Engine" in text:
            return int(status.parent.name)
    raise AssertionError("the engine's process was not found")
