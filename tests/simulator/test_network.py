"""A slow and lossy network, as a model and over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from otel_llm.simulator.network import (
    DOWN,
    RETRANSMIT_S,
    UP,
    Link,
    Network,
    NetworkPolicy,
    Relay,
    Trouble,
)
from otel_llm.simulator.workload import Window

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def link(*troubles: Trouble, way: str = DOWN, seed: int = 0) -> Link:
    """One direction of a connection with these troubles."""
    return Link(Network(troubles), way, Random(seed))


def test_a_network_without_trouble_delivers_at_once() -> None:
    """Nothing wrong, nothing added."""
    assert link().arrives(5.0, 1000) == 5.0


def test_delay_is_added_and_pieces_do_not_wait_for_each_other() -> None:
    """Two pieces sent 10 ms apart arrive 10 ms apart."""
    line = link(Trouble(delay_s=0.1))
    assert [line.arrives(1.0, 10), line.arrives(1.01, 10)] == pytest.approx([1.1, 1.11])


def test_jitter_never_reorders() -> None:
    """With much jitter later bytes still arrive later."""
    line = link(Trouble(jitter_s=0.5))
    times = [line.arrives(number / 100, 10) for number in range(200)]
    assert times == sorted(times)
    assert times[-1] > 2.0


def test_bandwidth_queues_what_is_sent_together() -> None:
    """1000 bytes per second take a second for each 1000 bytes, one after the other."""
    line = link(Trouble(bytes_per_s=1000))
    assert [line.arrives(0.0, 1000), line.arrives(0.0, 500)] == pytest.approx([1.0, 1.5])


def test_a_lost_segment_stalls_everything_behind_it() -> None:
    """A loss costs one time-out, doubling with each further one; what follows does not overtake."""
    line = link(Trouble(loss=0.03), seed=3)
    sent = [number * 0.01 for number in range(300)]
    times = [line.arrives(at, 10) for at in sent]
    stalls = [there - at for there, at in zip(times, sent, strict=True)]
    assert times == sorted(times)
    assert {0.0, RETRANSMIT_S} <= {round(stall, 9) for stall in stalls}
    assert len([stall for stall in stalls if 0 < stall < RETRANSMIT_S]) > 10


def test_two_losses_of_one_segment_wait_three_timeouts() -> None:
    """200 ms, then 400 ms."""
    waits = {round(link(Trouble(loss=0.5), seed=seed).arrives(0.0, 10), 9) for seed in range(200)}
    assert {0.0, 0.2, 0.6, 1.4} <= waits


def test_longer_messages_are_hit_more_often() -> None:
    """Every segment may be lost."""

    def hit(nbytes: int) -> int:
        lines = (link(Trouble(loss=0.02), seed=seed) for seed in range(300))
        return sum(line.arrives(0.0, nbytes) > 0 for line in lines)

    assert hit(10) < 20
    assert hit(146_000) > 100


def test_trouble_is_limited_to_its_window_and_direction() -> None:
    """Before, after, and the other way there is none."""
    trouble = Trouble(delay_s=1.0, window=Window(10, 20), ways=frozenset({UP}))
    assert [link(trouble, way=UP).arrives(at, 1) - at for at in (9, 10, 20)] == [0, 1, 0]
    assert link(trouble, way=DOWN).arrives(15, 1) == 15


def test_troubles_add_up() -> None:
    """Two faults at once are both felt."""
    assert link(Trouble(delay_s=1.0), Trouble(delay_s=2.0)).arrives(0.0, 1) == 3.0


def test_a_policy_keeps_connections_apart_and_repeats_itself() -> None:
    """Same seed, same delays; a stall of one connection does not hold the others."""

    def delays() -> list[float]:
        policy = NetworkPolicy(Network((Trouble(jitter_s=0.1),)), lambda: 0.0, seed=4)
        first, second = policy.connection(), policy.connection()
        return [first(10, UP), first(10, DOWN), second(10, UP), second(10, DOWN)]

    assert delays() == delays()
    assert len(set(delays())) == 4


@pytest.mark.parametrize("wrong", [{"loss": 1.0}, {"delay_s": -1.0}, {"jitter_s": -1.0}])
def test_what_is_no_network_is_refused(wrong: dict[str, float]) -> None:
    """Nothing would ever arrive, or arrive before it was sent."""
    with pytest.raises(ValueError, match="not a network"):
        Trouble(**wrong)


@asynccontextmanager
async def relayed(handler: Handler, *troubles: Trouble, **more: int) -> AsyncIterator[Relay]:
    """A relay in front of a server whose connections *handler* serves."""
    errors: list[BaseException] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except OSError:
            pass
        except Exception as error:
            errors.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Relay(Network(troubles), "127.0.0.1", port, **more) as relay:
            relay.begin()
            yield relay
    finally:
        server.close()
        await server.wait_closed()
    assert errors == []


@asynccontextmanager
async def connected(relay: Relay) -> AsyncIterator[Streams]:
    """A client's connection through it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until its end."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, as a crashed process does."""
    held = writer.get_extra_info("socket")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_bytes_pass_unchanged() -> None:
    """A megabyte comes back as it was sent, in order."""
    sent = Random(1).randbytes(1_000_000)
    async with relayed(echo, Trouble(jitter_s=0.0005)) as relay, connected(relay) as (reader, out):
        out.write(sent)
        assert await reader.readexactly(len(sent)) == sent


async def test_a_relayed_round_trip_takes_both_delays() -> None:
    """The handshake's round trip, and then that of the bytes."""
    loop = asyncio.get_running_loop()
    async with relayed(echo, Trouble(delay_s=0.05)) as relay, connected(relay) as (reader, out):
        before = loop.time()
        out.write(b"a")
        assert await reader.read(1) == b"a"
        between = loop.time()
        out.write(b"b")
        assert await reader.read(1) == b"b"
    assert 0.2 <= between - before < 0.3
    assert 0.1 <= loop.time() - between < 0.2


async def test_the_end_of_one_direction_leaves_the_other_open() -> None:
    """A server that answers after its peer's end is still heard."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(str(len(data)).encode())

    async with relayed(count) as relay, connected(relay) as (reader, out):
        out.write(b"x" * 1000)
        out.write_eof()
        assert await reader.read(-1) == b"1000"


async def test_a_server_that_resets_is_passed_on_as_a_reset() -> None:
    """Not as an end, which would look like a whole answer."""

    async def crash(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reset(writer)

    async with relayed(crash) as relay, connected(relay) as (reader, out):
        out.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_a_client_that_resets_is_passed_on_as_a_reset() -> None:
    """The server learns that its reader has gone."""
    learnt: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
            learnt.append("end")
        except ConnectionResetError:
            learnt.append("reset")

    async with relayed(listen) as relay, connected(relay) as (_, out):
        out.write(b"x")
        await asyncio.sleep(0.05)
        reset(out)
        await asyncio.sleep(0.05)
    assert learnt == ["reset"]


async def test_a_server_that_is_not_there_is_a_reset() -> None:
    """As a connection refused behind a proxy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Relay(Network(), "127.0.0.1", port) as relay, connected(relay) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_a_reader_that_stops_stops_the_sender() -> None:
    """Of an endless answer the relay keeps a bounded part, besides what the kernel holds."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with relayed(flood, buffer_bytes=65_536) as relay, connected(relay):
        await asyncio.sleep(0.3)
        before = sent
        await asyncio.sleep(0.2)
        assert sent == before < 40_000_000


async def test_connections_beyond_the_limit_are_reset() -> None:
    """The first is served, the second is not, and after the first has gone the third is."""
    async with relayed(echo, max_connections=1) as relay:
        async with connected(relay) as (reader, out), connected(relay) as (second, _):
            out.write(b"x")
            assert await reader.read(1) == b"x"
            with pytest.raises(ConnectionResetError):
                await second.read(1)
        await asyncio.sleep(0.05)
        async with connected(relay) as (reader, out):
            out.write(b"y")
            assert await reader.read(1) == b"y"


async def test_closing_leaves_nothing_running() -> None:
    """Open connections are dropped, with bytes under way and without."""
    before = asyncio.all_tasks()
    async with relayed(echo, Trouble(delay_s=60)) as relay:
        _, out = await asyncio.open_connection("127.0.0.1", relay.port)
        out.write(b"x")
        await asyncio.sleep(0.05)
        await relay.aclose()
        out.close()
        assert asyncio.all_tasks() == before


def test_a_relay_that_is_not_running_has_no_port() -> None:
    """The message says how to start it."""
    with pytest.raises(RuntimeError, match="async with Relay"):
        _ = Relay(Network(), "127.0.0.1", 1).port
