"""Every way to leave an asynchronous stream of the OpenAI client; see `test_exits`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import (
    attributes,
    requests,
)
from tests.clients.exits import CUT, LONG, abandoned, ended, surroundings_fixture
from tests.clients.fixtures import Ask
from tests.fakes.openai_server import failing, hanging, stream

__all__ = ["surroundings_fixture"]


async def test_async_read_to_the_end(captured: CapturedTelemetry, aask: Ask) -> None:
    """The span ends with the last chunk."""
    assert len([each async for each in await aask(stream(5))]) == 8
    assert ended(captured, "ok", StatusCode.UNSET)


async def test_async_break_and_keep(captured: CapturedTelemetry, aask: Ask) -> None:
    """Leaving the loop ends it although the stream object is kept."""
    opened = await aask(LONG)
    async for _ in opened:
        break
    assert abandoned(captured)
    await opened.close()


async def test_async_break_and_delete(captured: CapturedTelemetry, aask: Ask) -> None:
    """Leaving the loop and dropping the stream."""
    opened = await aask(LONG)
    async for _ in opened:
        break
    del opened
    assert abandoned(captured)


@pytest.mark.parametrize("way", ["close", "aclose"])
@pytest.mark.parametrize("read", [0, 2])
async def test_async_close(captured: CapturedTelemetry, aask: Ask, way: str, read: int) -> None:
    """Closed by either name, unread or in the middle."""
    opened = await aask(LONG)
    for _ in range(read):
        await anext(opened)
    await getattr(opened, way)()
    assert abandoned(captured)


async def test_async_with(captured: CapturedTelemetry, aask: Ask) -> None:
    """The end of the `async with` block."""
    async with await aask(LONG) as opened:
        await anext(opened)
        assert not requests(captured)
    assert abandoned(captured)


async def test_async_never_consumed(captured: CapturedTelemetry, aask: Ask) -> None:
    """Dropped unread: ended at once."""
    opened = await aask(LONG)
    del opened
    assert abandoned(captured)


async def test_async_connection_lost(captured: CapturedTelemetry, aask: Ask) -> None:
    """The library's own error reaches the reader."""
    opened = await aask(CUT)
    with pytest.raises(openai.APIConnectionError):
        async for _ in opened:
            pass
    assert ended(captured, "error", StatusCode.ERROR)


async def test_async_consumer_raises(captured: CapturedTelemetry, aask: Ask) -> None:
    """An exception in the loop's body passes, and is not the model's fault."""
    opened = await aask(LONG)

    async def read() -> None:
        async for _ in opened:
            raise KeyError

    with pytest.raises(KeyError):
        await read()
    assert abandoned(captured)


async def test_async_http_error(captured: CapturedTelemetry, aask: Ask) -> None:
    """An error's status."""
    with pytest.raises(openai.InternalServerError):
        await aask(failing(500))
    assert ended(captured, "error", StatusCode.ERROR)


async def test_async_timeout(captured: CapturedTelemetry, aask: Ask) -> None:
    """Silence in the middle of a stream."""
    opened = await aask(hanging(), timeout=0.1)
    with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout)):
        async for _ in opened:
            pass
    assert ended(captured, "error", StatusCode.ERROR)


async def test_cancelled_in_the_middle(captured: CapturedTelemetry, aask: Ask) -> None:
    """The task that reads is cancelled while it waits for a chunk."""
    begun = asyncio.Event()
    opened = await aask(hanging())

    async def read() -> None:
        async for _ in opened:
            begun.set()

    await _cancelled(read(), begun)
    assert ended(captured, "cancelled", StatusCode.ERROR)
    assert semconv.TTFT_US in attributes(captured)


async def test_cancelled_between_chunks(captured: CapturedTelemetry, aask: Ask) -> None:
    """The task that reads is cancelled while it is busy with a chunk."""
    begun = asyncio.Event()
    opened = await aask(LONG)

    async def read() -> None:
        async for _ in opened:
            begun.set()
            await asyncio.sleep(30)

    await _cancelled(read(), begun)
    assert ended(captured, "cancelled", StatusCode.ERROR)


async def test_cancelled_within_async_with(captured: CapturedTelemetry, aask: Ask) -> None:
    """As before, but the stream is closed by the block that is left."""
    begun = asyncio.Event()
    opened = await aask(LONG)

    async def read() -> None:
        async with opened:
            await anext(opened)
            begun.set()
            await asyncio.sleep(30)

    await _cancelled(read(), begun)
    assert ended(captured, "cancelled", StatusCode.ERROR)


@pytest.mark.parametrize("streamed", [True, False])
async def test_cancelled_before_the_first_byte(
    captured: CapturedTelemetry, aask: Ask, streamed: bool
) -> None:
    """The task that calls is cancelled while it waits for headers."""
    task = asyncio.ensure_future(aask(stream(headers_after=0.5), stream=streamed))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended(captured, "cancelled", StatusCode.ERROR)


async def _cancelled(work: Any, begun: asyncio.Event) -> None:
    task = asyncio.create_task(work)
    await begun.wait()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
