"""The command: its lines, its exit status, its end by signals, and that it tells no secrets."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.fakes.otlp import receiving
from tests.servers.proxy.builders import (
    CHAT,
    DONE,
    LAST,
    Wire,
    ask,
    event,
    head,
    plain,
    request,
    upstream,
)
from tests.servers.proxy.commands import running, start

WORD = "swordfish"


class Held:
    """An upstream whose streams begin, and end when they are told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        """Serve one connection."""
        if not await wire.asked():
            return
        await wire.send(head())
        await wire.chunks(event())
        self.begun.set()
        gone = asyncio.create_task(wire.gone())
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({gone, over}, return_when=asyncio.FIRST_COMPLETED)
        if self.over.is_set():
            await wire.chunks(LAST, DONE)
            await wire.send(b"0\r\n\r\n")
            await gone
        over.cancel()
        self.left.set()


async def test_it_is_drained_and_flushed() -> None:
    """At SIGTERM the open stream goes on to its end, and its spans are exported after it."""
    held = Held()
    with receiving() as receiver:
        async with (
            upstream(held) as address,
            running(address, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as proxy,
        ):
            answer = asyncio.create_task(ask(proxy.address, request()))
            await held.begun.wait()
            assert proxy.admin is not None
            healthy = await ask(proxy.admin, b"GET /healthz HTTP/1.1\r\n\r\n")
            proxy.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.4)
            draining = await ask(proxy.admin, b"GET /healthz HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*proxy.address)
            held.over.set()
            found = await answer
            said = await proxy.rest()
            assert proxy.process.returncode == 0
    assert (healthy.status, draining.status) == (200, 503)
    assert (found.body, found.whole) == (event() + LAST + DONE, True)
    assert {f"POST {CHAT}", "chat tiny"} <= {span.name for span in receiver.spans}
    assert receiver.resource["service.name"] == "otel-llm-proxy"
    assert said == ""


async def test_a_stream_that_outlasts_the_grace_time_is_cut() -> None:
    """The process ends, and so does the stream; its spans are exported all the same."""
    held = Held()
    with receiving() as receiver:
        async with (
            upstream(held) as address,
            running(address, "--grace", "0.3", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as proxy,
        ):
            answer = asyncio.create_task(ask(proxy.address, request()))
            await held.begun.wait()
            proxy.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                found = await answer
                await held.left.wait()
                await proxy.process.wait()
    assert (found.body, found.whole) == (event(), False)
    (span,) = [each for each in receiver.spans if each.name == "chat tiny"]
    outcome = {each.key: each.value.string_value for each in span.attributes}
    assert outcome["otel_llm.outcome"] == "cancelled"


async def test_a_proxy_that_is_killed() -> None:
    """Client and upstream both lose their connection at once."""
    held = Held()
    async with upstream(held) as address, running(address) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(request())
        await reader.readuntil(event())
        proxy.process.kill()
        async with asyncio.timeout(5):
            rest = await reader.read()
            await held.left.wait()
        writer.close()
    assert rest == b"\r\n"


async def test_metrics_of_its_own_beside_those_of_the_upstream() -> None:
    """The upstream's `/metrics` is reached through it, its own at another address."""

    async def handler(wire: Wire) -> None:
        while await wire.asked():
            await wire.send(plain(b"theirs" if b"/metrics" in wire.head else b"{}"))

    async with upstream(handler) as address, running(address) as proxy:
        await ask(proxy.address, request({"model": "tiny"}))
        theirs = await ask(proxy.address, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        assert proxy.admin is not None
        ours = await ask(proxy.admin, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert theirs.body == b"theirs"
    assert b"gen_ai_server_request_duration" in ours.body


async def test_it_tells_no_secrets() -> None:
    """Neither content nor credentials are in its output, whatever goes wrong."""

    async def handler(wire: Wire) -> None:
        while await wire.asked():
            await wire.send(head())
            await wire.chunks(b"data: {" + WORD.encode() + b"\n\n")
            wire.cut()

    sent = request(WORD.encode(), f"{CHAT}?key={WORD}", authorization=WORD)
    async with upstream(handler) as address, running(address) as proxy:
        await ask(proxy.address, sent)
        await ask(proxy.address, b"GET \x00" + WORD.encode() + b"\r\n\r\n")
        proxy.process.send_signal(signal.SIGINT)
        said = await proxy.rest()
        assert proxy.process.returncode == 0
    assert WORD not in said


async def test_a_port_that_is_taken() -> None:
    """It says so, in one line, as wrong usage."""
    async with upstream(Held()) as address:
        process = await start("--upstream", "http://a", "--listen", address.text)
        out, errors = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert errors.startswith(f"otel-llm: --listen: cannot listen on {address.text}".encode())
    assert errors.count(b"\n") == 1


async def test_an_upstream_that_is_none() -> None:
    """It says what is accepted, and does not repeat what was given."""
    process = await start("--upstream", f"http://me:{WORD}@engine")
    out, errors = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"--upstream must be" in errors
    assert WORD.encode() not in errors


async def test_switched_off() -> None:
    """With OTEL_LLM_DISABLED it is a proxy and nothing else."""

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(plain(str("traceparent" in wire.headers).encode()))

    async with upstream(handler) as address, running(address, OTEL_LLM_DISABLED="1") as proxy:
        answer = await ask(proxy.address, request())
    assert (answer.status, answer.body) == (200, b"False")
