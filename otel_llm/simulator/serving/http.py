"""Just enough HTTP for bare ASGI applications: one exchange, its body, its reply, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[str, str]]

LARGEST_BODY = 1024 * 1024
"""A request with more bytes than this is refused."""


class PeerGone(Exception):  # noqa: N818 - it is no error
    """The client has closed its connection."""


class BodyTooLarge(Exception):  # noqa: N818 - named as the HTTP status is
    """The request has more than `LARGEST_BODY` bytes."""


class Exchange:
    """One request and its reply on one connection.

    `sent` is called after a piece of the body was handed over, with its bytes and whether it was
    the last; `gone` once, as soon as the client is known to have left.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        sent: Callable[[bytes, bool], None] = lambda _body, _last: None,
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope.get("headers", ())
        }
        self.status: int | None = None
        self.peer_gone = False
        self._receive = receive
        self._send = send
        self._sent = sent
        self._watch: asyncio.Task[None] | None = None

    async def body(self) -> bytes:
        """All of the request's body.

        Raises:
            BodyTooLarge: It is longer than `LARGEST_BODY`.
            PeerGone: The client left before its end.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                self.peer_gone = True
                raise PeerGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > LARGEST_BODY:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return b"".join(parts)

    def watch(self, gone: Callable[[], None]) -> None:
        """Call *gone* as soon as the client leaves; the body must have been read."""

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.peer_gone = True
            gone()

        self._watch = asyncio.ensure_future(wait())

    async def unwatch(self) -> None:
        """Look out for the client no more."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes, *, last: bool = False) -> None:
        """Send a piece of the body; returns when it was taken, which a slow reader may delay.

        Raises:
            PeerGone: The client has left.
        """
        if self.peer_gone:
            raise PeerGone
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})
        except OSError:
            self.peer_gone = True
            raise PeerGone from None
        # A server drops what is sent to nobody, and does not say so.
        if self.peer_gone:
            raise PeerGone
        self._sent(body, last)

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole reply."""
        await self.start(status, headers)
        await self.write(body, last=True)


def compact(value: object) -> bytes:
    """JSON without spaces, and with characters as they are."""
    return _encode(value).encode("utf-8", "replace")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def parent_of(traceparent: str | None) -> tuple[str | None, str | None]:
    """The trace and the span that a `traceparent` names, both in hexadecimal digits, or None."""
    parts = (traceparent or "").split("-")
    known = len(parts) >= 4 and len(parts[1]) == 32 and len(parts[2]) == 16
    return (parts[1], parts[2]) if known else (None, None)
