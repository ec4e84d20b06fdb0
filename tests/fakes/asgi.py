"""An ASGI server without a network: one connection, its messages in and out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from otel_llm.emit.live import current_request
from otel_llm.testing import ManualClock

Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]
CHAT = "/v1/chat/completions"
Headers = dict[str, str]


def scope(
    path: str = CHAT, headers: Headers | None = None, method: str = "POST", **more: Any
) -> dict[str, Any]:
    """The scope of an HTTP request, JSON by default."""
    named = {"content-type": "application/json"} | (headers or {})
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
    } | more


def body(*parts: bytes) -> list[Message]:
    """A request body in these parts."""
    return [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]


def chat_body(**more: Any) -> list[Message]:
    """A chat request for the model `tiny`."""
    return body(json.dumps({"model": "tiny", "messages": [], **more}).encode())


class Connection:
    """What the application is given as `receive` and `send`.

    Args:
        incoming: The messages of the request; after them `receive` waits for `leave`.
        accepts: How many messages `send` takes before it raises `OSError`.
    """

    def __init__(
        self, incoming: Iterable[Message] | None = None, accepts: int | None = None
    ) -> None:
        self.incoming = list(chat_body() if incoming is None else incoming)
        self.sent: list[Message] = []
        self._accepts = accepts
        self._left = asyncio.Event()

    def leave(self) -> None:
        """The peer goes away."""
        self._left.set()

    async def receive(self) -> Message:
        """The next message of the request."""
        if self.incoming:
            return self.incoming.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message of the reply."""
        if self._accepts is not None and len(self.sent) >= self._accepts:
            raise BrokenPipeError("the peer went away")
        self.sent.append(message)

    async def serve(self, app: App, **scope_parts: Any) -> Connection:
        """Let *app* serve this connection; returns it."""
        await app(scope(**scope_parts), self.receive, self.send)
        return self


def start(status: int = 200, kind: str = "application/json") -> Message:
    """The head of a reply."""
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", kind.encode())],
    }


def chunk(data: bytes = b"", *, more: bool = True) -> Message:
    """A piece of a reply's body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


def replies(*messages: Message) -> App:
    """An application that reads the request to its end and sends these messages."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        for message in messages:
            await send(message)

    return app


def streams(*chunks: bytes, kind: str = "text/event-stream") -> App:
    """An application that streams these chunks and an empty last one."""
    return replies(start(kind=kind), *map(chunk, chunks), chunk(more=False))


def generates(clock: ManualClock, *chunks: bytes, reason: str | None = "stop") -> App:
    """An application whose engine makes an output every 10 ms and sends a chunk for each."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        live = current_request()
        assert live is not None
        lane = live.recorder.lane()
        await send(start(kind="text/event-stream"))
        for data in chunks:
            clock.advance(0.010)
            lane.stamps.append(clock.monotonic_ns())
            await send(chunk(data))
        if reason is not None:
            live.recorder.finish_reasons = (reason,)
        await send(chunk(more=False))

    return app
