"""WebSocket connections: one SERVER span each, and whatever requests the application begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from otel_llm import config, semconv, trace_request
from otel_llm.servers.asgi import InferenceMiddleware, ServerSettings
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.fakes.asgi import Message
from tests.servers.builders import PARENT, SPAN_ID, TRACE_ID

PATH = "/v1/realtime"
SCOPE = {
    "type": "websocket",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "scheme": "ws",
    "path": PATH,
    "query_string": b"",
    "subprotocols": [],
    "headers": [(b"traceparent", PARENT.encode())],
    "server": ("127.0.0.1", 8000),
    "client": ("127.0.0.1", 50000),
}
OFF = {"auto_configure": False, "tracing": False, "metrics": False, "logs": False}


class Peer:
    """A client that connects, sends its texts, and closes once it was answered to each."""

    def __init__(self, *texts: str) -> None:
        self.incoming: list[Message] = [{"type": "websocket.connect"}]
        self.incoming += [{"type": "websocket.receive", "text": text} for text in texts]
        self.sent: list[Message] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        """The next message; after the last one, that the client has closed."""
        if self.incoming:
            return self.incoming.pop(0)
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(self, message: Message) -> None:
        """Take a message; a peer that is gone takes none."""
        if self.gone.is_set():
            raise BrokenPipeError
        self.sent.append(message)

    async def serve(self, app: Any) -> Peer:
        """Let *app* serve this connection; returns it."""
        await app(dict(SCOPE), self.receive, self.send)
        return self


async def bare(_scope: Any, receive: Any, send: Any) -> None:
    """An application without a framework: one request for each text, 500 chunks each."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        async for each in answered(message["text"]):
            await send({"type": "websocket.send", "text": each})


async def talk(websocket: WebSocket) -> None:
    """The same with a framework."""
    await websocket.accept()
    async for text in websocket.iter_text():
        async for each in answered(text):
            await websocket.send_text(each)


async def answered(text: str) -> AsyncIterator[str]:
    """The chunks of one answer, in a request span of their own."""

    async def chunks() -> AsyncIterator[str]:
        for number in range(500):
            yield f"{text}{number}"

    with trace_request("chat", model="tiny", provider="demo") as request:
        async for each in request.stream(chunks()):
            yield each


def plain(captured: CapturedTelemetry) -> Any:
    """No framework, no other tracing."""
    return InferenceMiddleware(bare, captured.telemetry)


def starlette(captured: CapturedTelemetry) -> Any:
    """Starlette, our middleware put around it."""
    app = Starlette(routes=[WebSocketRoute(PATH, talk)])
    return InferenceMiddleware(app, captured.telemetry)


def fastapi(captured: CapturedTelemetry, **own: Any) -> FastAPI:
    """FastAPI, our middleware among its own."""
    app = FastAPI(telemetry={**OFF, **own})
    app.add_api_websocket_route(PATH, talk)
    app.add_middleware(InferenceMiddleware, telemetry=captured.telemetry)
    return app


def fastapi_tracing(captured: CapturedTelemetry) -> Any:
    """FastAPI with its own tracing."""
    return fastapi(captured, tracing=True, tracer_provider=captured.tracer_provider)


def contrib(captured: CapturedTelemetry) -> Any:
    """Contrib's middleware around everything."""
    return OpenTelemetryMiddleware(
        fastapi(captured),
        tracer_provider=captured.tracer_provider,
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["send", "receive"],
    )


def twice(captured: CapturedTelemetry) -> Any:
    """Our middleware twice."""
    return InferenceMiddleware(plain(captured), captured.telemetry)


@pytest.fixture(autouse=True)
def in_force(captured: CapturedTelemetry) -> None:
    """`trace_request` writes to the same place."""
    config.RUNTIME.telemetry = captured.telemetry


def server_spans(captured: CapturedTelemetry) -> list[Any]:
    """All of kind SERVER."""
    return [each for each in captured.spans if each.kind is SpanKind.SERVER]


def above(captured: CapturedTelemetry, request: Any) -> int:
    """The id of the parent; FastAPI's own tracing has a span of its own in between."""
    spans = {each.context.span_id: each for each in captured.spans}
    parent: int = request.parent.span_id
    while spans[parent].kind is SpanKind.INTERNAL:
        parent = spans[parent].parent.span_id
    return parent


@pytest.mark.parametrize(
    "made",
    [plain, starlette, fastapi, fastapi_tracing, contrib, twice],
    ids=lambda made: made.__name__,
)
class TestEveryApplication:
    """Whatever serves, and whoever else traces."""

    async def test_one_server_span(
        self, captured: CapturedTelemetry, made: Callable[..., Any]
    ) -> None:
        """For the connection, in the caller's trace, not marked as failed."""
        await Peer("a", "b").serve(made(captured))
        (server,) = server_spans(captured)
        assert (server.context.trace_id, server.parent.span_id) == (TRACE_ID, SPAN_ID)
        assert server.status.status_code is StatusCode.UNSET

    async def test_a_request_for_each_text(
        self, captured: CapturedTelemetry, made: Callable[..., Any]
    ) -> None:
        """Below it, ended with its last chunk, and no more spans for 500 chunks."""
        peer = await Peer("a", "b").serve(made(captured))
        (server,) = server_spans(captured)
        requests = [each for each in captured.spans if each.name == "chat tiny"]
        assert [above(captured, each) for each in requests] == [server.context.span_id] * 2
        assert [each.attributes[semconv.OUTCOME] for each in requests] == ["ok", "ok"]
        assert len(captured.spans) <= 4 + 2 * 4
        assert len([each for each in peer.sent if each["type"] == "websocket.send"]) == 1000


class TestServerSpan:
    """The span of the connection itself."""

    async def test_attributes(self, captured: CapturedTelemetry) -> None:
        """A GET that was upgraded; without a framework no route is known."""
        await Peer().serve(plain(captured))
        assert dict(captured.span("GET").attributes) == {
            "http.request.method": "GET",
            "url.path": PATH,
            "url.scheme": "ws",
            "network.protocol.version": "1.1",
            "server.address": "127.0.0.1",
            "server.port": 8000,
            "http.response.status_code": 101,
        }

    async def test_the_route_that_fastapi_has_found(self, captured: CapturedTelemetry) -> None:
        """It names the span."""
        await Peer().serve(fastapi(captured))
        assert captured.span(f"GET {PATH}").attributes["http.route"] == PATH

    async def test_it_ends_when_the_peer_leaves(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """What the application does afterwards is not the connection's."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            clock.advance(1)
            await bare(scope, receive, send)
            clock.advance(9)

        await Peer().serve(InferenceMiddleware(app, captured.telemetry))
        server = captured.span("GET")
        assert server.end_time - server.start_time == 1_000_000_000

    async def test_it_ends_when_the_peer_cannot_be_written_to(
        self, captured: CapturedTelemetry
    ) -> None:
        """The application sees the error itself; a peer that left is no failure."""
        peer = Peer("a")
        peer.gone.set()
        with pytest.raises(BrokenPipeError):
            await peer.serve(plain(captured))
        assert captured.span("GET").status.status_code is StatusCode.UNSET

    async def test_it_ends_when_the_application_closes(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """At once; closed before it was accepted it was refused."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "websocket.close", "code": 1008})
            clock.advance(9)

        await Peer().serve(InferenceMiddleware(app, captured.telemetry))
        server = captured.span("GET")
        assert (server.end_time, server.attributes["http.response.status_code"]) == (
            server.start_time,
            403,
        )

    async def test_an_application_that_fails(self, captured: CapturedTelemetry) -> None:
        """The class of the error, and never its message."""

        async def app(*_given: Any) -> None:
            raise LookupError("secret")

        with pytest.raises(LookupError, match="secret"):
            await Peer().serve(InferenceMiddleware(app, captured.telemetry))
        server = captured.span("GET")
        assert (server.attributes["error.type"], server.status.status_code) == (
            "LookupError",
            StatusCode.ERROR,
        )
        assert "secret" not in server.to_json()

    async def test_an_untrusted_caller_is_linked(self, captured: CapturedTelemetry) -> None:
        """As for HTTP."""
        untrusting = ServerSettings(trust_remote=False)
        await Peer().serve(InferenceMiddleware(bare, captured.telemetry, untrusting))
        server = captured.span("GET")
        assert (server.parent, server.links[0].context.trace_id) == (None, TRACE_ID)

    async def test_nothing_is_left_in_the_context(self, captured: CapturedTelemetry) -> None:
        """The span that was current before is current again."""
        await Peer("a").serve(plain(captured))
        assert trace.get_current_span() is trace.INVALID_SPAN

    async def test_messages_pass_unchanged(self, captured: CapturedTelemetry) -> None:
        """The very objects, in order."""
        sent = [{"type": "websocket.accept"}, {"type": "websocket.send", "bytes": b"x"}]
        got: list[Message] = []

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            got.extend([await receive(), await receive()])
            for each in sent:
                await send(each)

        peer = Peer("a")
        expected = list(peer.incoming)
        await peer.serve(InferenceMiddleware(app, captured.telemetry))
        assert [id(each) for each in expected + sent] == [id(each) for each in got + peer.sent]
