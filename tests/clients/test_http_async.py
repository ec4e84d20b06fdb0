"""HTTP responses watched in place, asynchronous: how httpx's and aiohttp's are left."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import httpx
import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from otel_llm.tracing import TracedRequest
from tests.clients.builders import attributes
from tests.clients.home_made import (  # noqa: F401 - fixtures among them
    CUT,
    IDLE,
    LONG,
    Server,
    abandoned,
    captured_fixture,
    ended,
    server_fixture,
    surroundings,
    traced,
)
from tests.fakes.openai_server import (
    hanging,
    stream,
)


async def _cancelled(work: Any, begun: asyncio.Event) -> None:
    task = asyncio.create_task(work)
    await begun.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestAsyncExits:
    """Ways to leave the body of a response, asynchronous: httpx and aiohttp."""

    @pytest.fixture(params=["httpx", "aiohttp"])
    def ask(self, request: pytest.FixtureRequest) -> Any:
        """How a library opens a response, and gives its lines."""
        return {"httpx": _HttpxLines, "aiohttp": _AiohttpLines}[request.param]

    async def test_break(self, captured: CapturedTelemetry, server: Server, ask: Any) -> None:
        """The reader leaves its loop and the response."""
        async with traced() as r, ask(server(LONG)) as opened:
            async for _ in opened.lines(r):
                break
        assert abandoned(captured)

    async def test_error(self, captured: CapturedTelemetry, server: Server, ask: Any) -> None:
        """The connection is lost."""

        async def read() -> None:
            async with traced() as r, ask(server(CUT)) as opened:
                async for _ in opened.lines(r):
                    pass

        with pytest.raises((httpx.HTTPError, aiohttp.ClientError)):
            await read()
        assert ended(captured, "error", StatusCode.ERROR)

    @pytest.mark.parametrize("busy", [0.0, 30.0])
    async def test_cancelled(
        self, captured: CapturedTelemetry, server: Server, ask: Any, busy: float
    ) -> None:
        """The task is cancelled while it waits for a line, or while it is busy with one."""
        begun = asyncio.Event()

        async def read() -> None:
            async with traced() as r, ask(server(hanging())) as opened:
                async for line in opened.lines(r):
                    if b"token" in line:
                        begun.set()
                        await asyncio.sleep(busy)

        await _cancelled(read(), begun)
        assert ended(captured, "cancelled", StatusCode.ERROR)
        assert semconv.TTFT_US in attributes(captured)

    async def test_closed_by_a_cancelled_task(
        self, captured: CapturedTelemetry, server: Server, ask: Any
    ) -> None:
        """The response is closed on the way out, after the traced request's block was left."""
        begun = asyncio.Event()

        async def read() -> None:
            async with ask(server(hanging())) as opened:
                async with traced() as r:
                    lines = opened.lines(r)
                async for _ in lines:
                    begun.set()
                    await asyncio.sleep(30)

        await _cancelled(read(), begun)
        assert ended(captured, "cancelled", StatusCode.ERROR)

    async def test_unread(self, captured: CapturedTelemetry, server: Server, ask: Any) -> None:
        """The response is left without reading."""
        async with traced() as r, ask(server(LONG)) as opened:
            opened.lines(r)
        assert abandoned(captured)

    async def test_types(self, captured: CapturedTelemetry, server: Server, ask: Any) -> None:
        """The same object, an instance of its class."""
        async with traced() as r, ask(server(stream())) as opened:
            kind = type(opened.response)
            assert r.response(opened.response) is opened.response
            assert isinstance(opened.response, kind)
            content = getattr(opened.response, "content", None) if ask is _AiohttpLines else None
            assert content is None or isinstance(content, aiohttp.StreamReader)


class _HttpxLines:
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> _HttpxLines:
        self._client = httpx.AsyncClient()
        asked = self._client.build_request("POST", self._url, json={})
        self.response = await self._client.send(asked, stream=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.response.aclose()
        await self._client.aclose()

    def lines(self, r: TracedRequest) -> Any:
        """The lines of the watched response."""
        lines = r.response(self.response).aiter_lines()
        return (line.encode() async for line in lines)


class _AiohttpLines:
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> _AiohttpLines:
        self._session = aiohttp.ClientSession()
        self.response = await self._session.post(self._url, json={})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.response.release()
        await self._session.close()

    def lines(self, r: TracedRequest) -> Any:
        """The lines of the watched response."""
        return r.response(self.response).content
