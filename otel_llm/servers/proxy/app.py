"""The proxy as an ASGI application: every request goes on, every answer comes back, as it is.

A task of its own sends the body on and then waits for the client to leave, so that the upstream's
connection ends with the client's. An answer that is cut is left incomplete, which makes the server
below (uvicorn) cut the client's connection as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from otel_llm.clock import SYSTEM_CLOCK, Anchor
from otel_llm.emit.telemetry import Telemetry
from otel_llm.propagation.headers import normalised
from otel_llm.servers.arrival import resolved
from otel_llm.servers.asgi import ServerSettings
from otel_llm.servers.body import BodyAhead, Message, Receive, Scope, Send
from otel_llm.servers.proxy.connection import Connection, Head, Request
from otel_llm.servers.proxy.errors import LONG_HEAD, StaleConnectionError, UpstreamError
from otel_llm.servers.proxy.exchange import Arrived, Exchange, Shared
from otel_llm.servers.proxy.headers import end_to_end, size_of, upstream_headers
from otel_llm.servers.proxy.pool import Upstream
from otel_llm.servers.proxy.routes import inference_route
from otel_llm.servers.proxy.settings import ProxySettings

REFUSAL = {
    400: b"the request cannot be passed on\n",
    431: b"the request's headers are too long\n",
    502: b"the upstream cannot be reached or has not answered\n",
    504: b"the upstream has not answered in time\n",
}


class ProxyApp:
    """The ASGI application.

    Args:
        settings: Upstream, engine and limits.
        telemetry: Where spans and metrics go, or a callable that says so at each request.
        server: How requests that arrive are treated: trust, identity.
    """

    def __init__(
        self,
        settings: ProxySettings,
        telemetry: Telemetry | Callable[[], Telemetry | None],
        server: ServerSettings | None = None,
    ) -> None:
        self.settings = settings
        self.upstream = Upstream(settings.upstream, settings.limits)
        self.shared = Shared(settings, server or ServerSettings())
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes than HTTP have no answer."""
        if scope["type"] != "http":
            return
        ahead = BodyAhead(receive)
        exchange = await self._begun(scope, ahead)
        passage = _Passage(self, exchange, scope, ahead.receive, send)
        try:
            await passage.run()
        except BaseException as error:
            if exchange is not None:
                exchange.raised(error)
            raise
        finally:
            passage.close()

    def telemetry(self) -> Telemetry | None:
        """The telemetry in force, or None."""
        return resolved(self._telemetry)

    async def _begun(self, scope: Scope, ahead: BodyAhead) -> Exchange | None:
        """The spans of an inference request; its JSON body is read first."""
        route = inference_route(self.settings.engine, scope["method"], scope["path"])
        telemetry = self.telemetry() if route is not None else None
        if route is None or telemetry is None:
            return None
        anchor = Anchor.take(telemetry.clock)
        headers = normalised(scope["headers"])
        body: dict[str, Any] = {}
        if route.json:
            body = await ahead.read(headers, self.settings.limits.inspected_bytes)
        return Exchange(telemetry, self.shared, Arrived(scope, route, headers, body, anchor))


class _Passage:
    """One request on its way through."""

    def __init__(
        self, app: ProxyApp, exchange: Exchange | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._app = app
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self._scope = scope
        self._connection: Connection | None = None
        self._sender: asyncio.Task[None] | None = None
        self._gone = False
        self._over = False

    async def run(self) -> None:
        """From the first of the body to the last of the answer."""
        first = await self._receive()
        if first["type"] != "http.request":
            self._leave()
            return
        begun = False
        try:
            head = await self._answer(first)
            first = {}  # a long prompt is not held while its answer lasts
            if self._exchange is not None:
                self._exchange.answered(head)
            begun = True
            await self._send(_start(head.status, end_to_end(head.headers)))
            await self._pass()
        except UpstreamError as error:
            if not self._gone:
                await self._failed(error, begun=begun)

    async def _answer(self, first: Message) -> Head:
        """Send the request, and wait for the answer's head.

        A kept connection that turns out to be closed is replaced, once, if the request is whole.
        """
        scope, exchange = self._scope, self._exchange
        headers = scope["headers"] if exchange is None else exchange.headers
        settings = self._app.settings
        if size_of(headers) > settings.limits.header_bytes:
            raise UpstreamError(LONG_HEAD, 431)
        origin = settings.upstream
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        target = origin.prefix.encode() + path
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        fields = upstream_headers(headers, settings, scope)
        request = Request(scope["method"].encode(), target, fields)
        body, more = first.get("body", b""), first.get("more_body", False)
        connection = await self._open(request, body, more=more, attempt=1)
        self._sender = asyncio.create_task(self._send_on(more=more))
        try:
            return await connection.head()
        except StaleConnectionError:
            if more:
                raise
            connection = await self._open(request, body, more=more, attempt=2)
            return await connection.head()

    async def _open(self, request: Request, body: bytes, *, more: bool, attempt: int) -> Connection:
        connection = await self._app.upstream.open(fresh=attempt > 1)
        self._connection = connection
        if self._gone:
            connection.close()
        connection.begin(request, body, more=more)
        if self._exchange is not None:
            self._exchange.sent(attempt)
        return connection

    async def _send_on(self, *, more: bool) -> None:
        """Send the rest of the body, and then wait until the client leaves."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
            if more and self._connection is not None:
                more = message.get("more_body", False)
                await self._connection.write(message.get("body", b""), more=more)
        self._leave()

    def _leave(self) -> None:
        """The client has gone: nobody needs the answer."""
        if self._over:
            return
        self._gone = True
        if self._exchange is not None:
            self._exchange.left()
        if self._connection is not None:
            self._connection.close()

    async def _pass(self) -> None:
        """Hand the body on, piece by piece, and have it read afterwards."""
        connection, send, exchange = self._connection, self._send, self._exchange
        assert connection is not None  # noqa: S101 - its head was read
        clock = SYSTEM_CLOCK.monotonic
        ended = False
        while not ended:
            data, ended = await connection.read()
            came = clock()
            await send({"type": "http.response.body", "body": data, "more_body": not ended})
            if exchange is not None and data:
                exchange.took(data, came, clock())
        self._over = True
        if exchange is not None and not self._gone:
            exchange.delivered(clock())

    async def _failed(self, error: UpstreamError, *, begun: bool) -> None:
        """Tell the client if it has heard nothing; else its answer stays incomplete."""
        if self._exchange is not None:
            self._exchange.failed(error.kind, None if begun else error.status)
        if not begun:
            body = REFUSAL[error.status]
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
            ]
            self._over = True
            await self._send(_start(error.status, headers))
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def close(self) -> None:
        """Give the connection back, and end the spans."""
        self._over = True
        if self._sender is not None:
            self._sender.cancel()
        if self._connection is not None:
            self._app.upstream.release(self._connection)
        if self._exchange is not None:
            self._exchange.close()


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}
