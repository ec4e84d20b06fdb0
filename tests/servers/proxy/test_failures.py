"""Upstreams and clients that fail: what the client gets, and what the spans say."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.servers.proxy.settings import Address, Limits
from otel_llm.testing import CapturedTelemetry
from tests.servers.proxy.builders import (
    CHAT,
    DONE,
    LAST,
    Wire,
    ask,
    event,
    free_address,
    head,
    plain,
    proxied,
    request,
    until,
    upstream,
)

SERVER, REQUEST = f"POST {CHAT}", "chat tiny"


def told(captured: CapturedTelemetry) -> tuple[Any, ...]:
    """Outcome and `error.type` of the request span, and the status on the SERVER span."""
    found, server = captured.span(REQUEST).attributes, captured.span(SERVER).attributes
    assert found is not None
    assert server is not None
    return (
        found.get(semconv.OUTCOME),
        found.get(semconv.ERROR_TYPE),
        server.get(semconv.HTTP_STATUS),
    )


async def test_nobody_listens(captured: CapturedTelemetry) -> None:
    """An upstream that is down is a 502."""
    async with proxied(free_address(), captured) as proxy:
        answer = await ask(proxy.address, request())
        assert (answer.status, answer.whole) == (502, True)
        await until(lambda: len(captured.spans) == 2)
    assert told(captured) == ("error", "upstream_connect_failed", 502)


async def test_a_slow_connect(captured: CapturedTelemetry) -> None:
    """An upstream whose queue of connections is full is a 504 after the time-out."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        async with proxied(
            Address(*full.getsockname()), captured, limits=Limits(connect_s=0.2, grace_s=1)
        ) as proxy:
            answer = await ask(proxy.address, request())
            await until(lambda: len(captured.spans) == 2)
        for each in waiting:
            each.close()
    assert answer.status == 504
    assert told(captured) == ("error", "upstream_connect_timeout", 504)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_stream_that_is_cut(captured: CapturedTelemetry, reset: bool) -> None:
    """The client's connection is cut as well: it has every byte, and no end."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(event(), event())
        await asyncio.sleep(0.05)
        if reset:
            wire.cut()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: len(captured.spans) >= 2 and SERVER in captured.tree())
    assert (200, event() * 2, False) == (answer.status, answer.body, answer.whole)
    assert told(captured) == ("error", "upstream_cut", 200)
    assert captured.span(REQUEST).attributes[semconv.INCOMPLETE] is True


async def test_a_document_that_is_cut(captured: CapturedTelemetry) -> None:
    """A plain answer that lacks its end is an error, and cut for the client."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(plain(b'{"choices": []}')[:-3])
        await asyncio.sleep(0.05)

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request({"model": "tiny"}))
        await until(lambda: SERVER in captured.tree())
    assert (answer.body, answer.whole) == (b'{"choices": ', False)
    assert told(captured) == ("error", "upstream_cut", 200)


async def test_an_upstream_that_hangs_up_unanswered(captured: CapturedTelemetry) -> None:
    """No answer at all is a 502."""

    async def handler(wire: Wire) -> None:
        await wire.asked()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert answer.status == 502
    assert told(captured) == ("error", "upstream_cut", 502)


async def test_something_that_speaks_no_http(captured: CapturedTelemetry) -> None:
    """An upstream of another protocol is a 502."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n")
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert answer.status == 502
    assert told(captured) == ("error", "upstream_protocol_error", 502)


async def test_garbage_in_a_stream(captured: CapturedTelemetry) -> None:
    """Records that are no JSON are passed as they are, and counted."""
    garbage = b"data: \xff\xfe{{{\n\n\x00\x01\n\n"

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(garbage, event(), LAST, DONE)
        await wire.send(b"0\r\n\r\n")
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert (garbage + event() + LAST + DONE, True) == (answer.body, answer.whole)
    assert told(captured) == ("ok", None, 200)
    assert captured.span(REQUEST).attributes[semconv.MALFORMED_RECORDS] == 1


@pytest.mark.parametrize(
    ("status", "outcome", "kind"),
    [
        (429, "rejected", "429"),
        (503, "rejected", "503"),
        (500, "error", "500"),
        (404, "rejected", "404"),
    ],
)
async def test_a_refusal(captured: CapturedTelemetry, status: int, outcome: str, kind: str) -> None:
    """An error of the upstream's own is passed as it is, and told apart from a refusal."""
    body = b'{"detail": "no"}'

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(plain(body, status))
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert (status, body, True) == (answer.status, answer.body, answer.whole)
    assert (outcome, kind, status) == told(captured)


async def test_an_error_in_a_stream(captured: CapturedTelemetry) -> None:
    """An error event under status 200 is an error."""
    said = b'data: {"error": {"message": "no", "type": "InternalServerError", "code": 500}}\n\n'

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(event(), said, DONE)
        await wire.send(b"0\r\n\r\n")
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert event() + said + DONE == answer.body
    assert told(captured) == ("error", "InternalServerError", 200)


@pytest.mark.parametrize("begun", [True, False])
async def test_an_upstream_that_falls_silent(captured: CapturedTelemetry, begun: bool) -> None:
    """Where a limit is set, silence ends the request: 504, or a cut."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        if begun:
            await wire.send(head())
            await wire.chunks(event())
        await wire.gone()

    limits = Limits(silence_s=0.1, grace_s=1)
    async with upstream(handler) as address, proxied(address, captured, limits=limits) as proxy:
        answer = await ask(proxy.address, request())
        await until(lambda: SERVER in captured.tree())
    assert (200 if begun else 504, not begun) == (answer.status, answer.whole)
    assert ("error", "upstream_silent", answer.status) == told(captured)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_client_that_leaves(captured: CapturedTelemetry, begun: bool) -> None:
    """The upstream's connection ends at once, so that the engine aborts."""
    left = asyncio.Event()

    async def handler(wire: Wire) -> None:
        await wire.asked()
        if begun:
            await wire.send(head())
            await wire.chunks(event())
        await wire.gone()
        left.set()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(request())
        if begun:
            await reader.readuntil(event())
        else:
            await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(1):
            await left.wait()
        await until(lambda: SERVER in captured.tree())
    assert ("cancelled", "peer_gone", 200 if begun else None) == told(captured)


async def test_a_client_that_leaves_after_the_terminator(captured: CapturedTelemetry) -> None:
    """Who hangs up once everything was said has lost nothing."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(event(), LAST, DONE)
        await wire.gone()

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(request())
        await reader.readuntil(DONE)
        writer.close()
        await until(lambda: SERVER in captured.tree())
    assert told(captured) == ("ok", None, 200)


async def test_a_kept_connection_that_was_closed(captured: CapturedTelemetry) -> None:
    """A request that meets the end of a kept connection is sent again on a new one."""
    requests = 0

    async def handler(wire: Wire) -> None:
        nonlocal requests
        await wire.asked()
        requests += 1
        await wire.send(plain(b"{}"))
        await wire.asked()  # and hangs up unanswered

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        first = await ask(proxy.address, request({"model": "tiny"}))
        second = await ask(proxy.address, request({"model": "tiny"}))
    assert [(each.status, each.body) for each in (first, second)] == [(200, b"{}"), (200, b"{}")]
    assert requests == 2


async def test_a_server_that_ends(captured: CapturedTelemetry) -> None:
    """What is still open after the grace time is cut, and its spans end as cancelled."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        await wire.chunks(event())
        await wire.gone()

    limits = Limits(grace_s=0.2)
    async with upstream(handler) as address:
        async with proxied(address, captured, limits=limits) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(request())
            await reader.readuntil(event())
        answer = await reader.read()
        writer.close()
    assert b"0\r\n\r\n" not in answer
    assert told(captured) == ("cancelled", "asyncio.exceptions.CancelledError", 200)
