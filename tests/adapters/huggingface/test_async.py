"""The asynchronous client."""

from __future__ import annotations

import asyncio
import gc
import inspect
from contextlib import suppress

import pytest
from huggingface_hub import AsyncInferenceClient

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.adapters.huggingface.builders import (
    MESSAGES,
    after,
    outcome,
    request,
    traced,
)
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer


class TestAsync:
    """The asynchronous client."""

    async def test_chat(
        self, captured: CapturedTelemetry, server: TgiServer, aclient: AsyncInferenceClient
    ) -> None:
        """A reply in one piece, with the phases of its headers."""
        server.answers = [after(tgi.plain(tgi.completion()))]
        reply = await aclient.chat_completion(MESSAGES)
        assert reply.choices[0].message.content == "Blue sky"
        assert (
            request(captured)["otel_llm.queue_us"],
            request(captured)[semconv.REPORTED_INFERENCE_US],
        ) == (40_000, 160_000)
        assert traced(server, captured)

    async def test_read_to_the_end(
        self, captured: CapturedTelemetry, server: TgiServer, aclient: AsyncInferenceClient
    ) -> None:
        """An asynchronous generator of the same name."""
        items = await aclient.text_generation("secret", stream=True, details=True)
        assert inspect.isasyncgen(items)
        assert items.__name__ == "_async_stream_text_generation_response"
        assert [item.token.text async for item in items] == ["Blue", " sky", "</s>"]
        assert outcome(captured) == ("ok", None)
        assert request(captured)[semconv.OUTPUT_TOKENS] == 3
        assert traced(server, captured)

    async def test_closed(self, captured: CapturedTelemetry, aclient: AsyncInferenceClient) -> None:
        """Closed in the middle."""
        items = await aclient.chat_completion(MESSAGES, stream=True)
        await anext(items)
        await items.aclose()
        assert outcome(captured) == ("abandoned", None)

    async def test_dropped(
        self, captured: CapturedTelemetry, aclient: AsyncInferenceClient
    ) -> None:
        """The event loop closes a generator that nobody holds any more."""
        async for _ in await aclient.chat_completion(MESSAGES, stream=True):
            break
        for _ in range(20):
            await asyncio.sleep(0)
        assert outcome(captured) == ("abandoned", None)

    async def test_never_read(
        self, captured: CapturedTelemetry, aclient: AsyncInferenceClient
    ) -> None:
        """Dropped before anything was read."""
        await aclient.chat_completion(MESSAGES, stream=True)
        gc.collect()
        assert outcome(captured) == ("abandoned", None)

    async def test_a_refusal(
        self, captured: CapturedTelemetry, server: TgiServer, aclient: AsyncInferenceClient
    ) -> None:
        """The status is found in the exceptions of each HTTP library."""
        server.answers = [tgi.failing(429, "overloaded")]
        with pytest.raises(Exception, match="secret"):
            await aclient.text_generation("secret")
        assert outcome(captured) == ("rejected", "429")

    @pytest.mark.parametrize(("words", "ttft"), [(0, False), (2, True)])
    async def test_cancelled(
        self,
        captured: CapturedTelemetry,
        server: TgiServer,
        aclient: AsyncInferenceClient,
        words: int,
        ttft: bool,
    ) -> None:
        """Cancelled while it waits for the first token, or for a later one."""
        server.answers = [tgi.streamed(*tgi.events()[:words], 1.0)]
        waiting = asyncio.Event()

        async def read() -> None:
            items = await aclient.text_generation("secret", stream=True)
            for _ in range(words):
                await anext(items)
            waiting.set()
            await anext(items)

        task = asyncio.create_task(read())
        await waiting.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert outcome(captured)[0] == "cancelled"
        assert ttft == ("otel_llm.ttft_us" in request(captured))

    async def test_cancelled_before_the_headers(
        self, captured: CapturedTelemetry, server: TgiServer, aclient: AsyncInferenceClient
    ) -> None:
        """Cancelled within the call."""
        server.answers = [after(tgi.chat_stream(), 0.5)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aclient.chat_completion(MESSAGES, stream=True)
        assert outcome(captured)[0] == "cancelled"
