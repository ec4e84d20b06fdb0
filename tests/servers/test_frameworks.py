"""FastAPI, Starlette and bare ASGI, by the middleware or by `trace_request`: the same result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from opentelemetry.trace import SpanKind
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.routing import Route

from otel_llm import InferenceMiddleware, config, current_request, semconv, trace_request
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes.asgi import CHAT, chunk, start
from tests.fakes.http import served
from tests.servers.builders import PARENT, REQUEST, TRACE_ID
from tests.servers.test_uvicorn import until

ASKED = {"model": "tiny", "stream": True, "messages": []}
BACKGROUND = 0.3
Engine = Callable[..., AsyncIterator[bytes]]


async def chunks(count: int) -> AsyncIterator[bytes]:
    """What a model generates."""
    for _ in range(count):
        await asyncio.sleep(0)
        yield b"data: x\n\n"


async def by_middleware(_headers: Any, count: int) -> AsyncIterator[bytes]:
    """An engine that tells the server's request of its outputs."""
    request = current_request()
    async for each in chunks(count):
        request.output()
        yield each
    request.finish_reason("stop")


async def by_trace_request(headers: Any, count: int) -> AsyncIterator[bytes]:
    """An engine that begins the request itself."""
    given = {"model": "tiny", "provider": "demo", "side": "server", "carrier": headers}
    with trace_request("chat", **given) as request:
        async for each in request.stream(chunks(count)):
            yield each
        request.finish_reason("stop")


def fastapi(engine: Engine, count: int) -> Any:
    """A route of FastAPI."""
    app = FastAPI(telemetry={"auto_configure": False, "tracing": False, "metrics": False})

    @app.post(CHAT)
    async def chat(request: Request) -> StreamingResponse:
        return _streamed(engine(request.headers, count))

    return app


def starlette(engine: Engine, count: int) -> Any:
    """A route of Starlette."""

    async def chat(request: Request) -> StreamingResponse:
        return _streamed(engine(request.headers, count))

    return Starlette(routes=[Route(CHAT, chat, methods=["POST"])])


def _streamed(body: AsyncIterator[bytes]) -> StreamingResponse:
    later = BackgroundTask(asyncio.sleep, BACKGROUND)
    return StreamingResponse(body, media_type="text/event-stream", background=later)


def bare(engine: Engine, count: int) -> Any:
    """No framework: it watches for the peer itself."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        reply = asyncio.create_task(_reply(engine(headers, count), send))
        gone = asyncio.create_task(receive())
        await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
        reply.cancel() if gone.done() and not reply.done() else gone.cancel()
        await asyncio.gather(reply, gone, return_exceptions=True)
        await asyncio.sleep(BACKGROUND)

    return app


async def _reply(body: AsyncIterator[bytes], send: Any) -> None:
    await send(start(kind="text/event-stream"))
    async for each in body:
        await send(chunk(each))
    await send(chunk(more=False))


@pytest.fixture
def captured() -> CapturedTelemetry:
    """Telemetry on the clocks of this process, in force for all of it."""
    made = captured_telemetry()
    config.RUNTIME.telemetry = made.telemetry
    return made


def application(make: Callable[..., Any], engine: Engine, count: int) -> Any:
    """With our middleware around it, where the engine relies on that."""
    app = make(engine, count)
    return InferenceMiddleware(app, provider="demo") if engine is by_middleware else app


def shape(captured: CapturedTelemetry) -> dict[str, Any]:
    """What the request span says, apart from how long things took."""
    found = captured.span(REQUEST).attributes
    names = (semconv.OUTCOME, semconv.ERROR_TYPE, semconv.SIDE, semconv.FINISH_REASONS)
    return {name: found.get(name) for name in names}


@pytest.mark.parametrize("engine", [by_middleware, by_trace_request], ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [fastapi, starlette, bare], ids=lambda f: f.__name__)
class TestEveryFramework:
    """The same chat, served in six ways by a real server."""

    async def test_500_chunks(
        self, captured: CapturedTelemetry, make: Callable[..., Any], engine: Engine
    ) -> None:
        """The phase spans and no more; the background is not the request's."""
        async with served(application(make, engine, 500)) as url, httpx.AsyncClient() as client:
            answer = await client.post(url + CHAT, json=ASKED, headers={"traceparent": PARENT})
            await until(lambda: any(each.name == REQUEST for each in captured.spans), 1)
        assert answer.content == b"data: x\n\n" * 500
        request = captured.span(REQUEST)
        phases = [each.name for each in captured.spans if each.name.startswith("llm.")]
        assert (len(set(phases)), request.context.trace_id) == (len(phases), TRACE_ID)
        assert (
            {"llm.decode"}
            <= set(phases)
            <= {
                "llm.preprocess",
                "llm.prefill",
                "llm.first_token",
                "llm.decode",
                "llm.delivery",
            }
        )
        assert shape(captured) == {
            semconv.OUTCOME: "ok",
            semconv.ERROR_TYPE: None,
            semconv.SIDE: "server",
            semconv.FINISH_REASONS: ("stop",),
        }
        assert request.attributes[semconv.E2E_US] < BACKGROUND * 1e6
        servers = [each for each in captured.spans if each.kind is SpanKind.SERVER]
        assert len(servers) == (engine is by_middleware)

    async def test_a_client_that_leaves(
        self, captured: CapturedTelemetry, make: Callable[..., Any], engine: Engine
    ) -> None:
        """Ended at once, before the background work, and no success."""
        app = application(make, engine, 10_000_000)
        async with served(app) as url, httpx.AsyncClient() as client:
            async with client.stream("POST", url + CHAT, json=ASKED) as answer:
                await anext(answer.aiter_bytes(9))
            await until(lambda: any(each.name == REQUEST for each in captured.spans), 0.25)
        assert shape(captured)[semconv.OUTCOME] == "cancelled"
