"""WebSockets through the proxy: bytes as they are, one SERVER span."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

from opentelemetry.trace import SpanKind, StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.servers.builders import PARENT, TRACE_ID
from tests.servers.proxy.builders import Wire, free_address, plain, proxied, until, upstream

PATH = "/v1/realtime"
UPGRADE = (
    f"GET {PATH}?model=tiny HTTP/1.1\r\nHost: model.test\r\nConnection: Upgrade\r\n"
    "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
    f"traceparent: {PARENT}\r\n\r\n"
).encode()
GRANTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


async def echo(wire: Wire) -> None:
    """Grant the upgrade, and send everything back."""
    await wire.asked()
    await wire.send(GRANTED)
    while data := await wire.reader.read(65_536):
        await wire.send(data)


def shown(captured: CapturedTelemetry) -> tuple[Any, ...]:
    """Of the one span: name, status code and whether it is an error."""
    (span,) = captured.spans
    assert span.kind is SpanKind.SERVER
    found = span.attributes or {}
    return span.name, found.get(semconv.HTTP_STATUS), span.status.status_code is StatusCode.ERROR


async def test_bytes_both_ways(captured: CapturedTelemetry) -> None:
    """More than any buffer holds comes back unchanged; the handshake is the upstream's own."""
    sent = os.urandom(5_000_000)
    async with upstream(echo) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        assert await reader.readexactly(len(GRANTED)) == GRANTED
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await until(lambda: len(captured.spans) == 1)
    assert shown(captured) == (f"GET {PATH}", 101, False)


async def test_the_upstream_sees_the_span(captured: CapturedTelemetry) -> None:
    """The handshake goes on with every header, and with our context."""
    seen: list[Wire] = []

    async def handler(wire: Wire) -> None:
        seen.append(wire)
        await echo(wire)

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        await reader.readexactly(len(GRANTED))
        writer.close()
        await until(lambda: len(captured.spans) == 1)
    (span,) = captured.spans
    assert seen[0].head.startswith(f"GET {PATH}?model=tiny HTTP/1.1\r\n".encode())
    headers = seen[0].headers
    assert (headers["upgrade"], headers["connection"]) == ("websocket", "Upgrade")
    assert headers["sec-websocket-extensions"] == "permessage-deflate"
    assert headers["traceparent"] == f"00-{TRACE_ID:032x}-{span.context.span_id:016x}-01"


async def test_bytes_that_come_before_the_answer(captured: CapturedTelemetry) -> None:
    """What a client sends before the upgrade is granted waits for it."""
    granted = asyncio.Event()

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await granted.wait()
        await wire.send(GRANTED)
        await wire.send(await wire.reader.readexactly(5))

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        await asyncio.sleep(0.05)
        writer.write(b"early")
        await asyncio.sleep(0.05)
        granted.set()
        async with asyncio.timeout(5):
            assert await reader.readexactly(len(GRANTED) + 5) == GRANTED + b"early"
        writer.close()


async def test_an_upgrade_that_is_refused(captured: CapturedTelemetry) -> None:
    """A refusal arrives as it is, and then the connection ends."""
    refusal = plain(b'{"error": "no"}', 403)

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(refusal)
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        async with asyncio.timeout(5):
            assert await reader.read() == refusal
        writer.close()
        await until(lambda: len(captured.spans) == 1)
    assert shown(captured) == (f"GET {PATH}", 403, False)


async def test_nobody_listens(captured: CapturedTelemetry) -> None:
    """Without an upstream the upgrade is answered 502."""
    async with proxied(free_address(), captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()
        await until(lambda: len(captured.spans) == 1)
    assert shown(captured) == (f"GET {PATH}", 502, True)


async def test_a_client_that_leaves(captured: CapturedTelemetry) -> None:
    """The upstream's end closes with the client's."""
    left = asyncio.Event()

    async def handler(wire: Wire) -> None:
        await echo(wire)
        left.set()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        await reader.readexactly(len(GRANTED))
        writer.close()
        async with asyncio.timeout(2):
            await left.wait()


async def test_an_upstream_that_leaves(captured: CapturedTelemetry) -> None:
    """The client's end closes with the upstream's, after all that was sent."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(GRANTED, b"bye")

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        async with asyncio.timeout(5):
            assert await reader.read() == GRANTED + b"bye"
        writer.close()
        await until(lambda: len(captured.spans) == 1)
    assert shown(captured) == (f"GET {PATH}", 101, False)


async def test_an_upstream_that_reads_nothing(captured: CapturedTelemetry) -> None:
    """The client can then send only so much."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(GRANTED)
        await asyncio.Event().wait()

    sent, most = 0, 16 * 1024 * 1024
    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(UPGRADE)
        await reader.readexactly(len(GRANTED))
        with suppress(TimeoutError):
            while sent < most:
                writer.write(b"x" * 65_536)
                async with asyncio.timeout(0.5):
                    await writer.drain()
                sent += 65_536
        writer.transport.abort()
    assert sent < most
