"""The network part of a call by Ollama's client, and by a client that is home-made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import ollama
import pytest
import requests as requests_library

import otel_llm
from otel_llm.clients import network
from otel_llm.emit.request import RequestInfo
from otel_llm.testing import CapturedTelemetry
from otel_llm.timeline import Side
from otel_llm.tracing import TracedRequest
from tests.clients.builders import STREAMED, request, requests
from tests.clients.lines import Wire, check_new, check_reused, is_near, linux, net, over
from tests.clients.transport import Body
from tests.fakes import ollama_server
from tests.fakes.openai_server import END, SSE, OpenAIServer, serving, stream, whole, word

Serve = Callable[..., OpenAIServer]


def asking() -> TracedRequest:
    """A request of a home-made client."""
    return otel_llm.trace_request("chat", provider="demo", model="tiny", side=Side.CLIENT)


@pytest.fixture
def asked(captured: CapturedTelemetry) -> CapturedTelemetry:
    """Ollama's client is patched, too."""
    otel_llm.instrument(engines=["ollama"], **captured.providers)
    return captured


REPLY = ollama_server.item(message=ollama_server.message("hi"), done=True)
OLLAMA = pytest.mark.parametrize(
    ("streamed", "answer"),
    [(True, ollama_server.chat()), (False, whole(REPLY))],
    ids=["streamed", "whole"],
)


class TestOllama:
    """Ollama's client, on httpx, which hands no response over."""

    @OLLAMA
    def test_sync(self, asked: CapturedTelemetry, streamed: bool, answer: Any) -> None:
        """The first call makes a connection, the second one uses it again."""
        with serving(answer) as server, ollama.Client(ollama_server.base(server)) as made:
            for _ in range(2):
                reply: Any = made.chat("tiny", [], stream=streamed)
                assert list(reply)
        first, second = map(net, requests(asked))
        check_new(first)
        check_reused(second)

    @OLLAMA
    async def test_async(self, asked: CapturedTelemetry, streamed: bool, answer: Any) -> None:
        """The same, asynchronous."""
        with serving(answer) as server:
            async with ollama.AsyncClient(ollama_server.base(server)) as made:
                for _ in range(2):
                    reply: Any = await made.chat("tiny", [], stream=streamed)
                    assert [each async for each in reply] if streamed else reply
        first, second = map(net, requests(asked))
        check_new(first)
        check_reused(second)


class TestWithoutALibrary:
    """`trace_request` and the responses of four HTTP libraries."""

    @pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
    def test_httpx(self, captured: CapturedTelemetry, serve: Serve, library: Any) -> None:
        """Whether the connection is new is not told after the fact, but that one is known is."""
        url = f"{serve(stream()).url}/chat/completions"
        with library.Client() as made:
            for _ in range(2):
                with (
                    asking() as r,
                    made.stream("POST", url, json=STREAMED, headers=r.headers()) as response,
                ):
                    r.response(response).read()
        first, second = map(net, requests(captured))
        assert "connection_reused" not in first
        assert is_near(first)
        check_reused(second)

    def test_requests(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A pool tells how many connections it has made; how long that took nobody does."""
        url = f"{serve(stream()).url}/chat/completions"
        with requests_library.Session() as made:
            for _ in range(2):
                with asking() as r:
                    given: Any = {"json": STREAMED, "headers": r.headers(), "stream": True}
                    assert r.response(made.post(url, **given)).content
        first, second = map(net, requests(captured))
        assert first["connection_reused"] is False
        assert is_near(first)
        check_reused(second)

    def test_requests_without_keep_alive(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """The library lets go of such a socket early; the body still holds it."""
        url = f"{serve(stream(headers={'connection': 'close'})).url}/chat/completions"
        with asking() as r:
            given: Any = {"json": STREAMED, "headers": r.headers(), "stream": True}
            with requests_library.post(url, timeout=10, **given) as response:
                assert r.response(response).content
        assert is_near(net(request(captured)))

    async def test_aiohttp(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """As with httpx."""
        url = f"{serve(stream(3, gap=0.02)).url}/chat/completions"
        async with aiohttp.ClientSession() as made:
            for _ in range(2):
                async with asking() as r:
                    sent = made.post(url, json=STREAMED, headers=r.headers())
                    async with sent as response:
                        assert await r.response(response).read()
        first, second = map(net, requests(captured))
        assert "connection_reused" not in first
        assert is_near(first)
        check_reused(second)

    async def test_a_session_for_one_call(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """Its signals tell how long the name and the connection took."""
        url = f"{serve(stream(3, gap=0.02)).url}/chat/completions"
        live = captured.telemetry.start(RequestInfo("chat", "demo", "tiny"), Side.CLIENT)
        network.watch_session(live, config := aiohttp.TraceConfig())
        url = url.replace("127.0.0.1", "localhost")
        async with (
            aiohttp.ClientSession(trace_configs=[config]) as made,
            made.post(url, json=STREAMED) as response,
        ):
            network.answered(live, response)
        live.finish()
        found = net(request(captured))
        assert 0 <= found["dns_us"] <= found["connect_us"]
        check_new(found)

    @linux
    def test_asked_at_the_end(self, captured: CapturedTelemetry) -> None:
        """The kernel is asked when the headers have come, and once more when all is read."""
        wire = Wire()
        response = httpx2.Response(
            200,
            headers={"content-type": SSE},
            stream=Body([word(), *END]),
            extensions=over(wire),
        )
        with asking() as r:
            r.response(response)
            assert wire.readings == 1
            response.read()
        assert net(request(captured))["rtt_us"] == 2000

    def test_http2(self, captured: CapturedTelemetry) -> None:
        """A connection that others use at the same time is not asked."""
        extensions = over(wire := Wire()) | {"http_version": b"HTTP/2"}
        with asking() as r:
            r.response(httpx2.Response(200, json={}, extensions=extensions))
        assert net(request(captured)) == {}
        assert wire.readings == 0
