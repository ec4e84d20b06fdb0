"""WebSocket: once the upgrade is asked for, bytes go both ways as they are, under a SERVER span.

It takes the place of uvicorn's own WebSocket protocol. Nothing of it is decoded, so that any
extension and subprotocol works; whoever ends the connection ends both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.trace import Span

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.values import Value
from otel_llm.guard import guard
from otel_llm.propagation.headers import normalised
from otel_llm.servers.arrival import Arrival, end_server_span
from otel_llm.servers.proxy.app import REFUSAL, ProxyApp
from otel_llm.servers.proxy.errors import CUT, UpstreamError
from otel_llm.servers.proxy.exchange import carrying
from otel_llm.servers.proxy.headers import forwarded, with_host
from otel_llm.servers.scope import http_attributes

if TYPE_CHECKING:
    import h11

Headers = list[tuple[bytes, bytes]]
ROUTES = ("/v1/realtime",)
"""Known paths for WebSockets; of any other the span has no route."""


class Pipe(asyncio.Protocol):
    """One end of a tunnel: what it receives goes to the other end, as fast as that takes it."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        self.transport: asyncio.Transport | None = None
        self.other: Pipe | None = None
        self.lost: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand it over."""
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """This end is gone."""
        self.lost()

    def pause_writing(self) -> None:
        """This end takes nothing more: the other is not read meanwhile."""
        if self.other is not None and self.other.transport is not None:
            with suppress(RuntimeError):
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It takes more."""
        if self.other is not None and self.other.transport is not None:
            with suppress(RuntimeError):
                self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send *data* on this end."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """End the connection, after what is still to be sent."""
        if self.transport is not None:
            self.transport.close()


class Tunnel(Pipe):
    """The client's end. uvicorn makes it, and hands it the head of the request."""

    def __init__(self, app: ProxyApp, server_state: Any) -> None:
        super().__init__(self._from_client)
        self._app = app
        self._connections: set[Any] = server_state.connections
        self._upstream = Pipe(self._from_upstream)
        self._early: list[bytes] = []
        self._head: h11.Connection | None = None
        self._span: Span | None = None
        self._status: int | None = None
        self._opening: asyncio.Task[None] | None = None
        self._open = False
        self.lost = self._over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server counts it, and waits for it when it shuts down."""
        super().connection_made(transport)
        self._connections.add(self)

    def shutdown(self) -> None:
        """The server is to end: the tunnel may go on for its grace time."""

    def _from_client(self, data: bytes) -> None:
        if self._open and self._head is None:  # the upgrade was granted
            self._upstream.write(data)
        elif self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._begin(data))
        else:
            self._early.append(data)
            if self.transport is not None:
                self.transport.pause_reading()

    async def _begin(self, head: bytes) -> None:
        import h11

        method, target, headers = _parsed(head)
        with guard("proxy.tunnel"):
            headers = self._started(method.decode("latin-1"), target, headers)
        settings = self._app.settings
        headers = with_host(headers, settings)
        peer = self.transport and self.transport.get_extra_info("peername")
        if settings.forwarded:
            headers = forwarded(headers, {"client": peer, "scheme": "http"})
        observed = h11.Connection(h11.CLIENT, settings.limits.header_bytes)
        try:
            target = settings.upstream.prefix.encode() + target
            sent = observed.send(h11.Request(method=method, target=target, headers=headers))
            observed.send(h11.EndOfMessage())
            await self._app.upstream.connect(self._made)
        except (UpstreamError, h11.LocalProtocolError) as error:
            self._refuse(error.status if isinstance(error, UpstreamError) else 400)
            return
        self._head, self._open = observed, True
        self._upstream.write(sent or b"")

    def _made(self) -> Pipe:
        upstream = self._upstream
        self.other, upstream.other = upstream, self
        upstream.lost = self.close
        return upstream

    def _from_upstream(self, data: bytes) -> None:
        self.write(data)
        if self._head is not None:
            self._observe(self._head, data)

    def _observe(self, head: h11.Connection, data: bytes) -> None:
        """Follow the answer until the upgrade is granted, or refused and over."""
        import h11

        try:
            head.receive_data(data)
            while (event := head.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response | h11.InformationalResponse):
                    self._status = event.status_code
                if self._status == 101:
                    self._granted()
                    return
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    self._upstream.close()
                    return
        except h11.RemoteProtocolError:
            self._upstream.close()

    def _granted(self) -> None:
        self._head = None
        for each in self._early:
            self._upstream.write(each)
        self._early.clear()
        if self.transport is not None:
            self.transport.resume_reading()

    def _refuse(self, status: int) -> None:
        self._status = status
        body = REFUSAL[status]
        self.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self.close()

    def _over(self) -> None:
        self._connections.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        if self._upstream.transport is not None:
            self._upstream.transport.abort()
        span, self._span = self._span, None
        if span is not None:
            with guard("proxy.tunnel_end"):
                broken = self._status is None or self._status >= 500
                failed = str(self._status or CUT) if broken else None
                end_server_span(span, status=self._status, failed=failed)

    def _started(self, method: str, target: bytes, headers: Headers) -> Headers:
        """Open the span; the headers with its context in them."""
        telemetry = self._app.telemetry()
        if telemetry is None:
            return headers
        server = self._app.shared.server
        arrival = Arrival.of(normalised(headers), server)
        path = target.partition(b"?")[0].decode("latin-1")
        scope = {"method": method, "path": path, "scheme": "ws", "http_version": "1.1"}
        attributes: dict[str, Value] = {**http_attributes(scope, None, None), **arrival.who}
        route = next((each for each in ROUTES if path.endswith(each)), None)
        if route is not None:
            attributes[semconv.HTTP_ROUTE] = route
        anchor = Anchor.take(telemetry.clock)
        context, self._span = arrival.server_span(
            telemetry, attributes, anchor, trust=server.trust_remote
        )
        return carrying(headers, context, trust=server.trust_remote)


def _parsed(head: bytes) -> tuple[bytes, bytes, Headers]:
    """The head that uvicorn has put together: method, target and headers."""
    first, *lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    method, target, _ = first.split(b" ", 2)
    pairs = (line.partition(b": ") for line in lines)
    return method, target, [(name, value) for name, _, value in pairs]
