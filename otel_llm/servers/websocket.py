"""WebSocket connections: one SERVER span each, below which the application begins requests.

What is asked and answered inside is known to the application alone: it says so with
`trace_request`, once for each request of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api
from opentelemetry.trace import Span

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.live import error_type_of
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.guard import guard
from otel_llm.servers.arrival import Arrival, end_server_span
from otel_llm.servers.body import App, Message, Receive, Scope, Send
from otel_llm.servers.scope import http_attributes

if TYPE_CHECKING:
    from otel_llm.servers.asgi import ServerSettings

ACCEPTED, REFUSED = 101, 403


class Connection:
    """One connection, from its handshake until either side closes it."""

    def __init__(self, telemetry: Telemetry, settings: ServerSettings, anchor: Anchor) -> None:
        self.telemetry = telemetry
        self.settings = settings
        self.anchor = anchor
        self.status: int | None = None
        self.server: Span | None = None
        self._scope: Scope = {}

    async def serve(
        self, app: App, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Run the application with the SERVER span current, and end it on every way out."""
        token = None
        with guard("websocket.start"):
            token = context_api.attach(self._start(scope, headers))
        try:
            if self.server is None:  # somebody else's, or none
                await app(scope, receive, send)
            else:
                await app(scope, self._receive(receive), self._send(send))
        except BaseException as error:
            self._end(error)
            raise
        finally:
            if token is not None:
                context_api.detach(token)
            self._end()

    def _start(self, scope: Scope, headers: Mapping[str, str]) -> Any:
        self._scope = scope
        arrival = Arrival.of(headers, self.settings)
        attributes: dict[str, Value] = {**http_attributes(scope, None, None), **arrival.who}
        context, self.server = arrival.server_span(
            self.telemetry, attributes, self.anchor, trust=self.settings.trust_remote
        )
        return context

    def _receive(self, receive: Receive) -> Receive:
        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self._end()
            return message

        return receiving

    def _send(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            try:
                await send(message)
            except OSError:
                self._end()  # the peer has gone
                raise
            kind = message["type"]
            if kind == "websocket.send":
                return
            if kind == "websocket.accept":
                self.status = ACCEPTED
            elif kind == "websocket.http.response.start":
                self.status = message["status"]
            elif kind == "websocket.close":
                self.status = self.status or REFUSED
                self._end()

        return sending

    def _end(self, error: BaseException | None = None) -> None:
        """End the span; only the first call does anything."""
        server, self.server = self.server, None
        if server is None:
            return
        with guard("websocket.end"):
            self._describe(server)
            now = self.telemetry.clock.monotonic_ns()
            end_server_span(
                server,
                status=self.status,
                failed=self._failure(error),
                end_ns=self.anchor.instant(now),
            )

    def _describe(self, server: Span) -> None:
        route = getattr(self._scope.get("route"), "path", None)  # where FastAPI has found one
        if isinstance(route, str) and server.is_recording():
            server.set_attribute(semconv.HTTP_ROUTE, route)
            server.update_name(f"GET {route}")

    def _failure(self, error: BaseException | None) -> str | None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            return error_type_of(error)
        return str(self.status) if self.status is not None and self.status >= 500 else None
