"""The middleware in a real server, asked by a real client, on the clocks of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from otel_llm import semconv
from otel_llm.emit.live import current_request
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.servers.body import LARGEST_BODY
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes.asgi import CHAT
from tests.fakes.http import served
from tests.servers.builders import PARENT, REQUEST, SERVER, TRACE_ID, outcome

ASKED = {"model": "tiny", "stream": True, "messages": []}
PAUSE = 0.001
BACKGROUND = 0.3


@pytest.fixture
def captured() -> CapturedTelemetry:
    """Telemetry on the clocks of this process."""
    return captured_telemetry()


async def tokens(count: int) -> AsyncIterator[bytes]:
    """An engine that makes an output every millisecond."""
    live = current_request()
    assert live is not None
    lane = live.recorder.lane()
    for _ in range(count):
        await asyncio.sleep(PAUSE)
        lane.stamps.append(live.recorder.clock.monotonic_ns())
        yield b"data: x\n\n"
    live.recorder.finish_reasons = ("stop",)


def application(captured: CapturedTelemetry, count: int = 500) -> InferenceMiddleware:
    """A chat route that streams, works on in the background, and an echo without a stream."""

    async def chat(_request: Any) -> StreamingResponse:
        later = BackgroundTask(asyncio.sleep, BACKGROUND)
        return StreamingResponse(tokens(count), media_type="text/event-stream", background=later)

    async def echo(request: Any) -> JSONResponse:
        return JSONResponse({"size": len(await request.body()), "body": await request.json()})

    routes = [
        Route(CHAT, chat, methods=["POST"]),
        Route("/v1/completions", echo, methods=["POST"]),
    ]
    return InferenceMiddleware(Starlette(routes=routes), captured.telemetry)


async def until(true: Callable[[], bool], limit: float) -> float:
    """Wait until something holds; the seconds that it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit, f"not so within {limit} s"
        await asyncio.sleep(0.001)
    return time.monotonic() - began


async def test_a_stream_to_its_end(captured: CapturedTelemetry) -> None:
    """The request lasts as long as its chunks; neither none of it nor the work afterwards."""
    async with served(application(captured)) as url, httpx.AsyncClient() as client:
        began = time.monotonic()
        answer = await client.post(url + CHAT, json=ASKED, headers={"traceparent": PARENT})
        seconds = time.monotonic() - began
        await until(lambda: SERVER in captured.tree(), 1)
    request = captured.span(REQUEST)
    assert 500 * PAUSE <= request.attributes[semconv.E2E_US] / 1e6 <= seconds
    assert len(captured.spans) <= 10
    assert answer.content == b"data: x\n\n" * 500
    assert (outcome(captured), request.context.trace_id) == (("ok", None, None), TRACE_ID)


async def test_a_client_that_leaves(captured: CapturedTelemetry) -> None:
    """After a hundred chunks of an endless reply: ended within a second, and said so."""
    async with served(application(captured, 100_000)) as url, httpx.AsyncClient() as client:
        async with client.stream("POST", url + CHAT, json=ASKED) as answer:
            chunks = answer.aiter_bytes(9)
            for _ in range(100):
                await anext(chunks)
        await until(lambda: SERVER in captured.tree(), 1)
    assert outcome(captured) == ("cancelled", "peer_gone", True)
    assert captured.span(REQUEST).attributes[semconv.ENDED_IN] == "decode"


@pytest.mark.parametrize("size", [10, LARGEST_BODY - 200, LARGEST_BODY + 200])
async def test_a_body_of_any_size(captured: CapturedTelemetry, size: int) -> None:
    """The application reads what was sent, byte for byte, read ahead or not."""
    asked = {"model": "tiny", "prompt": "\u96ea" * (size // 6)}
    async with served(application(captured)) as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/completions", json=asked)
    assert asked == answer.json()["body"]
    assert answer.json()["size"] == int(answer.request.headers["content-length"])


async def test_a_connection_that_is_used_again(captured: CapturedTelemetry) -> None:
    """Each request of a kept connection has its own spans."""
    async with served(application(captured, 2)) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            await client.post(url + CHAT, json=ASKED)
        await until(lambda: [each.name for each in captured.spans].count(SERVER) == 3, 2)
    names = [each.name for each in captured.spans]
    assert [names.count(SERVER), names.count(REQUEST)] == [3, 3]
