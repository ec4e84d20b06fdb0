"""A proxy in the running loop, an upstream made by hand before it, and a bare client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn

from otel_llm.servers.asgi import ServerSettings
from otel_llm.servers.proxy.app import ProxyApp
from otel_llm.servers.proxy.serve import config_of, listening
from otel_llm.servers.proxy.settings import (
    Address,
    Limits,
    Origin,
    ProxyEngine,
    ProxySettings,
)
from otel_llm.testing import CapturedTelemetry

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
SSE = (("content-type", "text/event-stream"),)
JSON = (("content-type", "application/json"),)


class Wire:
    """One connection to an upstream, from its side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""
        self.body = b""

    async def asked(self) -> bool:
        """Read a whole request; False if the peer has gone."""
        try:
            self.head = await self.reader.readuntil(b"\r\n\r\n")
            headers = self.headers
            if "content-length" in headers:
                self.body = await self.reader.readexactly(int(headers["content-length"]))
            elif "transfer-encoding" in headers:
                self.body = await self._chunks()
            else:
                self.body = b""
        except (asyncio.IncompleteReadError, OSError):
            return False
        return True

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    @property
    def headers(self) -> dict[str, str]:
        """Of the request, by lower-case names."""
        lines = self.head.decode("latin-1").split("\r\n")[1:-2]
        return {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}

    async def send(self, *pieces: bytes) -> None:
        """Send bytes as they are, each piece in a packet of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def chunks(self, *pieces: bytes) -> None:
        """Send pieces of a chunked body."""
        await self.send(*(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces))

    async def gone(self) -> None:
        """Until the peer has closed."""
        with suppress(OSError):
            while await self.reader.read(65_536):
                pass

    def cut(self) -> None:
        """End it in the middle."""
        self.writer.transport.abort()


Handler = Callable[[Wire], Awaitable[None]]


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[Address]:
    """An upstream that serves every connection with *handler*."""
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await handler(Wire(reader, writer))
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def head(status: int = 200, headers: tuple[tuple[str, str], ...] = SSE) -> bytes:
    """The head of a chunked answer."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode("latin-1")


def plain(body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = JSON) -> bytes:
    """A whole answer with its length."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers)]
    text = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
    return text.encode("latin-1") + body


def event(text: str = "x", **more: Any) -> bytes:
    """A chunk of a chat, with a token."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    item = {"id": "c1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]}
    return b"data: " + json.dumps(item).encode() + b"\n\n"


LAST = event("", finish_reason="stop")
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def engine_of(app: Any) -> AsyncIterator[Address]:
    """An upstream that is an ASGI application; without Nagle's algorithm, as real servers."""
    listener = listening(Address("127.0.0.1", 0), "test")
    server = uvicorn.Server(
        uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="critical")
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - it tells in no other way
        await asyncio.sleep(0.001)
    try:
        yield Address(*listener.getsockname()[:2])
    finally:
        server.should_exit = True
        await task


@dataclass
class Running:
    """A proxy, where it listens, and what it has written."""

    app: ProxyApp
    address: Address
    captured: CapturedTelemetry
    server: uvicorn.Server = field(repr=False)

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://{self.address.text}"


@asynccontextmanager
async def proxied(
    address: Address,
    captured: CapturedTelemetry,
    *,
    engine: ProxyEngine = ProxyEngine.AUTO,
    limits: Limits | None = None,
    server: ServerSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A proxy before *address*, in this loop."""
    given = ProxySettings(Origin(address), engine, limits=limits or Limits(grace_s=1), **settings)
    app = ProxyApp(given, captured.telemetry, server)
    listener = listening(Address("127.0.0.1", 0), "test")
    running = uvicorn.Server(config_of(app))
    task = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110 - it tells in no other way
        await asyncio.sleep(0.001)
    host, port = listener.getsockname()[:2]
    try:
        yield Running(app, Address(host, port), captured, running)
    finally:
        running.should_exit = True
        await task
        app.upstream.close()


@dataclass
class Answered:
    """What a client on a bare socket has read."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False
    """Whether it came to its end as HTTP wants it."""


def request(body: Any = ASKED, path: str = CHAT, method: str = "POST", **headers: str) -> bytes:
    """The bytes of a request; a body that is no bytes is JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "model.test", "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    fields["content-length"] = str(len(data))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


async def ask(address: Address, sent: bytes, limit_s: float = 20) -> Answered:
    """Send the bytes of one request, and read its answer to its end or the connection's."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    try:
        async with asyncio.timeout(limit_s):
            return await read(reader, sent.split(b" ", 1)[0])
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader, method: bytes = b"POST") -> Answered:
    """Read one answer."""
    found, http = Answered(), h11.Connection(h11.CLIENT)
    http.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    while True:
        try:
            item = http.next_event()
        except h11.RemoteProtocolError:
            return found
        if item is h11.NEED_DATA:
            try:
                http.receive_data(await reader.read(65_536))
            except OSError:
                return found
        elif isinstance(item, h11.Response):
            found.status, found.headers = item.status_code, list(item.headers)
        elif isinstance(item, h11.Data):
            found.body += item.data
        elif isinstance(item, h11.EndOfMessage):
            found.whole = True
            return found


async def until(true: Callable[[], bool], limit_s: float = 5) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110 - anything may be waited for
            await asyncio.sleep(0.002)


def free_address() -> Address:
    """Where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return Address(*found.getsockname())
