"""How much the proxy holds: bodies pass as they come, and as fast as the other side takes them."""

from __future__ import annotations

import asyncio

from otel_llm import semconv
from otel_llm.servers.body import LARGEST_BODY
from otel_llm.servers.proxy.settings import Limits
from otel_llm.testing import CapturedTelemetry
from tests.servers.proxy.builders import (
    CHAT,
    Wire,
    ask,
    event,
    head,
    plain,
    proxied,
    request,
    until,
    upstream,
)

PIECE = b"x" * 65_536
HELD = 16 * 1024 * 1024
"""More than the sockets and the proxy between two ends hold, bytes."""


async def test_a_long_head_of_an_answer(captured: CapturedTelemetry) -> None:
    """An answer whose headers are beyond the limit is a 502."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(plain(b"{}", headers=(("x-long", "y" * 100_000),)))

    limits = Limits(header_bytes=4_096, grace_s=1)
    async with upstream(handler) as address, proxied(address, captured, limits=limits) as proxy:
        answer = await ask(proxy.address, request())
    assert answer.status == 502


async def test_a_long_head_of_a_request(captured: CapturedTelemetry) -> None:
    """A request whose headers are beyond the limit is refused here."""

    async def handler(wire: Wire) -> None:
        raise AssertionError

    limits = Limits(header_bytes=4_096, grace_s=1)
    async with upstream(handler) as address, proxied(address, captured, limits=limits) as proxy:
        answer = await ask(proxy.address, request(x_long="y" * 100_000))
    assert answer.status == 431


async def test_too_many_connections(captured: CapturedTelemetry) -> None:
    """Beyond the limit a client is answered 503 at once."""
    over = asyncio.Event()

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await over.wait()
        await wire.send(plain(b"{}"))

    limits = Limits(connections=2, grace_s=1)
    async with upstream(handler) as address, proxied(address, captured, limits=limits) as proxy:
        held = [asyncio.create_task(ask(proxy.address, request())) for _ in range(2)]
        await until(lambda: proxy.app.shared.running == 2)
        refused = await ask(proxy.address, request())
        over.set()
        served = await asyncio.gather(*held)
    assert refused.status == 503
    assert [each.status for each in served] == [200, 200]


async def test_an_upload_is_not_held(captured: CapturedTelemetry) -> None:
    """The upstream has the first of a large body before its last was sent."""
    arrived = asyncio.Event()
    size = LARGEST_BODY + 10

    async def handler(wire: Wire) -> None:
        await wire.reader.readuntil(b"\r\n\r\n")
        await wire.reader.readexactly(1_000)
        arrived.set()
        await wire.reader.readexactly(size - 1_000)
        await wire.send(plain(b"{}"))

    sent = request(b"x" * size)
    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(sent[: -size + 2_000])
        async with asyncio.timeout(5):
            await arrived.wait()
            writer.write(sent[-size + 2_000 :])
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_an_answer_before_the_upload_is_over(captured: CapturedTelemetry) -> None:
    """An upstream that refuses a body early is heard at once."""

    async def handler(wire: Wire) -> None:
        await wire.reader.readuntil(b"\r\n\r\n")
        await wire.send(plain(b"{}", 413))
        await asyncio.sleep(0.2)

    sent = request(b"x" * (LARGEST_BODY + 10))
    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, sent[:5_000])
    assert (answer.status, answer.body) == (413, b"{}")


async def test_a_client_that_reads_slowly(captured: CapturedTelemetry) -> None:
    """While a client reads nothing, the upstream can send only so much."""
    sent = 0

    async def handler(wire: Wire) -> None:
        nonlocal sent
        await wire.asked()
        await wire.send(head(headers=(("content-type", "application/octet-stream"),)))
        while sent < 4 * HELD:
            await wire.chunks(PIECE)
            sent += len(PIECE)

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address, limit=1_024)
        writer.write(request())
        before = -1
        while before < sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < HELD
        while sent < HELD:
            assert await reader.read(1_048_576)
        writer.close()


async def test_an_upstream_that_reads_slowly(captured: CapturedTelemetry) -> None:
    """While an upstream reads nothing, a client can send only so much."""

    async def handler(wire: Wire) -> None:
        await asyncio.Event().wait()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        _, writer = await asyncio.open_connection(*proxy.address)
        writer.write(request(b"")[:-4].replace(b"content-length: 0", b"content-length: 99999999"))
        writer.write(b"\r\n\r\n")
        sent = 0
        try:
            while sent < HELD:
                writer.write(PIECE)
                async with asyncio.timeout(0.5):
                    await writer.drain()
                sent += len(PIECE)
        except TimeoutError:
            pass
        writer.transport.abort()
    assert sent < HELD


async def test_a_consumer_that_stalls_is_told(captured: CapturedTelemetry) -> None:
    """Time in which the client took nothing is the consumer's, not the engine's."""
    big = event("y" * 200_000)

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(*[big] * 60)
        await wire.send(b"0\r\n\r\n")
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address, limit=1_024)
        writer.write(request())
        await asyncio.sleep(0.5)
        while b"0\r\n\r\n" not in await reader.read(1_048_576):
            pass
        writer.close()
        await until(lambda: f"POST {CHAT}" in captured.tree())
    stalled = captured.span("chat tiny").attributes[semconv.CONSUMER_STALL_US]
    assert stalled > 200_000
