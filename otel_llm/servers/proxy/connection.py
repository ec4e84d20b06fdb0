"""One connection to the upstream: HTTP/1.1 through h11, body bytes as they come.

All chunks that one read of the socket brings are handed on together. While nobody takes them the
socket is not read; while the socket takes nothing, nobody is asked for more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from otel_llm.servers.proxy.errors import (
    BAD_REQUEST,
    CUT,
    GARBAGE,
    SILENT,
    StaleConnectionError,
    UpstreamError,
)
from otel_llm.servers.proxy.headers import size_of

if TYPE_CHECKING:
    import h11

HIGH_WATER = 65_536
"""Bytes that wait for their reader before the socket is left unread."""


class Request(NamedTuple):
    """The head of a request, as it goes to the upstream."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]


class Head(NamedTuple):
    """The head of an answer; header names are as the upstream writes them."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """A connection, used for one exchange at a time.

    Args:
        header_bytes: Longer heads of answers are an error.
        silence_s: How long the upstream may say nothing during an exchange, or None.
    """

    def __init__(self, header_bytes: int, silence_s: float | None = None) -> None:
        import h11

        self._h11: h11.Connection = h11.Connection(h11.CLIENT, header_bytes)
        self._events = h11
        self._header_bytes = header_bytes
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread = 0
        self._paused = False
        self._heard = False
        self._used = 0
        self._active = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lost = False
        """True once the connection is of no use any more."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """The upstream has sent something."""
        self._heard = True
        self._unread += len(data)
        self._h11.receive_data(data)
        self._wake()
        if self._unread > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The upstream will send nothing more."""
        self.lost = True
        self._h11.receive_data(b"")
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection is gone, whoever ended it."""
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        """The upstream does not take what is sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It takes it again."""
        self._writable.set()

    # What the proxy calls.

    @property
    def idle(self) -> bool:
        """Whether a connection that was kept is still open, and nothing came unasked."""
        return not self.lost and not self._unread

    def begin(self, request: Request, body: bytes, *, more: bool) -> None:
        """Send the head and the first part of the body; raises `UpstreamError` if it is none."""
        events = self._events
        self._used += 1
        self._heard = False
        method, target, headers = request
        if method == b"CONNECT":
            raise UpstreamError(BAD_REQUEST, 400)
        try:
            event = events.Request(method=method, target=target, headers=headers)
        except events.LocalProtocolError:
            raise UpstreamError(BAD_REQUEST, 400) from None
        sent = self._h11.send(event)
        self._send((sent or b"") + self._framed(body, more=more))

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a further part of the body, as soon as the upstream takes it."""
        await self._writable.wait()
        self._acted()
        if not self.lost:
            self._send(self._framed(body, more=more))

    async def head(self) -> Head:
        """The head of the answer; raises `UpstreamError`."""
        while True:
            event = await self._event()
            if isinstance(event, self._events.Response):
                found = Head(event.status_code, list(event.headers.raw_items()))
                # h11's own limit holds for a head that comes in parts.
                if size_of(found.headers) > self._header_bytes:
                    raise UpstreamError(GARBAGE)
                return found
            if not isinstance(event, self._events.InformationalResponse):
                raise UpstreamError(GARBAGE)

    async def read(self) -> tuple[bytes, bool]:
        """What came of the body, and whether it is at its end; raises `UpstreamError`."""
        parts: list[bytes] = []
        data = self._events.Data
        while True:
            event = self._next()
            if type(event) is data:
                parts.append(event.data)
            elif isinstance(event, self._events.EndOfMessage):
                return b"".join(parts), True
            elif parts:
                return b"".join(parts), False
            else:
                await self._wait()

    def reusable(self) -> bool:
        """Make it ready for another exchange; False if it cannot have one."""
        states = {self._h11.our_state, self._h11.their_state}
        if self.lost or states != {self._events.DONE} or self._h11.trailing_data[0]:
            return False
        self._h11.start_next_cycle()
        self._resume()
        return True

    def close(self) -> None:
        """End the connection at once; what the upstream still sends is not read."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        events = self._events
        sent = self._h11.send(events.Data(data=body)) if body else b""
        ended = b"" if more else self._h11.send(events.EndOfMessage())
        return (sent or b"") + (ended or b"")

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    async def _event(self) -> object:
        while (event := self._next()) is None:
            await self._wait()
        return event

    def _next(self) -> h11.Event | None:
        """The next event, or None if more must come for it."""
        events = self._events
        try:
            event = self._h11.next_event()
        except events.RemoteProtocolError:
            raise self._broken(GARBAGE) from None
        if event is events.NEED_DATA or event is events.PAUSED:
            return None
        if isinstance(event, events.ConnectionClosed):
            raise self._broken(CUT)
        return cast("h11.Event", event)

    def _broken(self, kind: str) -> UpstreamError:
        if self.lost and self._used > 1 and not self._heard:
            return StaleConnectionError()
        return UpstreamError(CUT if self.lost else kind)

    async def _wait(self) -> None:
        """Until something comes; raises `UpstreamError` if nothing can or does."""
        if self.lost:
            raise self._broken(CUT)
        self._resume()
        self._acted()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _acted(self) -> None:
        """Something was heard, sent, or is waited for: silence begins now."""
        if self._silence_s is not None:
            self._active = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._silence_s, self._tire, self._silence_s)

    def _tire(self, silence_s: float) -> None:
        """Give up a wait that has lasted too long."""
        left = self._active + silence_s - self._loop.time()
        self._timer = None
        if left > 0:
            self._timer = self._loop.call_later(left, self._tire, silence_s)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(UpstreamError(SILENT, 504))

    def _resume(self) -> None:
        self._unread = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
