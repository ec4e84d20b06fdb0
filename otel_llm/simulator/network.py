"""A slow and lossy network: one model of a link, for sockets and for an in-process transport.

What TCP does to a stream of tokens is kept, and nothing else: bytes arrive in order, each at least
one delay after it was sent; the line carries only so many bytes per second; and a lost segment is
sent again after a time-out, during which everything behind it waits. A stream of tokens is too
thin for TCP's quicker ways to notice a loss.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from otel_llm.simulator.workload import ALWAYS, Window, seeded

SEGMENT_BYTES = 1460
RETRANSMIT_S = 0.2
"""Linux's shortest retransmission time-out; it doubles with each further loss of a segment."""
MOST_RETRANSMITS = 8
UP, DOWN = "up", "down"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the network adds, each way, while *window* lasts.

    Args:
        delay_s: One-way delay.
        jitter_s: Mean of an exponential further delay, drawn for each piece sent.
        loss: Probability that a segment is lost, 0 to below 1.
        bytes_per_s: What the line carries; None is without bound.
        window: When, in seconds since the start of the run.
        ways: Which directions suffer.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    window: Window = ALWAYS
    ways: frozenset[str] = frozenset({UP, DOWN})

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1 or self.delay_s < 0 or self.jitter_s < 0:
            raise ValueError(f"not a network: {self}")


@dataclass(frozen=True, slots=True)
class Network:
    """Every trouble of a network; without any it delivers at once."""

    troubles: tuple[Trouble, ...] = ()

    def at(self, now_s: float, way: str) -> tuple[Trouble, ...]:
        """What is wrong at that second of the run, in that direction."""
        return tuple(each for each in self.troubles if now_s in each.window and way in each.ways)


@dataclass(slots=True)
class Link:
    """One direction of one connection: says when bytes that are sent now arrive.

    Times are seconds since the start of the run.
    """

    network: Network
    way: str
    rng: Random
    _free_s: float = 0.0
    """When the line has put the last byte out."""
    _last_s: float = 0.0
    """When the last byte arrives; nothing arrives before it."""

    def arrives(self, now_s: float, nbytes: int) -> float:
        """When the last of *nbytes* bytes arrives that are sent at *now_s*."""
        troubles = self.network.at(now_s, self.way)
        sent_s = max(now_s, self._free_s)
        added_s = 0.0
        for each in troubles:
            added_s += each.delay_s + self._jitter(each) + self._lost(each, nbytes)
            if each.bytes_per_s is not None:
                sent_s += nbytes / each.bytes_per_s
        self._free_s = sent_s
        self._last_s = max(self._last_s, sent_s + added_s)
        return self._last_s

    def _jitter(self, trouble: Trouble) -> float:
        return self.rng.expovariate(1 / trouble.jitter_s) if trouble.jitter_s else 0.0

    def _lost(self, trouble: Trouble, nbytes: int) -> float:
        """The stall of the unluckiest of the segments: each loss waits twice as long as before."""
        worst = 0
        for _ in range(math.ceil(nbytes / SEGMENT_BYTES) if trouble.loss else 0):
            losses = 0
            while losses < MOST_RETRANSMITS and self.rng.random() < trouble.loss:
                losses += 1
            worst = max(worst, losses)
        return RETRANSMIT_S * ((1 << worst) - 1)


@dataclass(slots=True)
class NetworkPolicy:
    """The delays of one network for one connection of an in-process transport.

    `policy(nbytes, way)` is how many seconds from now bytes sent now arrive; way is "up" towards
    the server or "down". Make one for each connection with `connection`.

    Args:
        network: The network.
        now_s: Reads the seconds since the start of the run.
        seed: Same seed, same delays.
    """

    network: Network
    now_s: Callable[[], float]
    seed: int = 0
    _links: dict[str, Link] = field(default_factory=dict)
    _connections: int = 0

    def connection(self) -> NetworkPolicy:
        """The same network for a connection of its own."""
        self._connections += 1
        return NetworkPolicy(self.network, self.now_s, self.seed + 7919 * self._connections)

    def __call__(self, nbytes: int, way: str) -> float:
        """Seconds until *nbytes* bytes sent now in direction *way* have arrived."""
        link = self._links.get(way)
        if link is None:
            rng = seeded(self.seed, way)
            link = self._links[way] = Link(self.network, way, rng)
        now_s = self.now_s()
        return link.arrives(now_s, nbytes) - now_s


class Relay:
    """A TCP relay on loopback with the troubles of a network between its two sides.

        async with Relay(network, "127.0.0.1", 8000) as relay:
            ...  # clients use relay.port

    A reader that stops stops the sender, since only *buffer_bytes* are kept each way. The end of
    one direction is passed on and leaves the other open; a reset is passed on as a reset.

    Args:
        network: What goes wrong.
        host: Where the server is.
        port: Its port.
        seed: Same seed and same traffic, same delays.
        max_connections: How many are served at once; further ones are reset. None is without bound.
        buffer_bytes: How much is under way each way before the sender is made to wait.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        port: int,
        *,
        seed: int = 0,
        max_connections: int | None = None,
        buffer_bytes: int = 65_536,
    ) -> None:
        self._network = network
        self._target = (host, port)
        self._seed = seed
        self._most = max_connections
        self._buffer = buffer_bytes
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._connections = 0
        self._start_s: float | None = None

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1, once it was started."""
        if self._server is None:
            raise RuntimeError("the relay is not running; use it as `async with Relay(...)`")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def begin(self) -> None:
        """The run starts now: windows of the network are counted from here."""
        self._start_s = asyncio.get_running_loop().time()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening and drop every connection; nothing of it runs afterwards."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    def _now_s(self) -> float:
        if self._start_s is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._start_s

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._most is not None and len(self._open) >= self._most:
            _reset(writer)
            return
        self._connections += 1
        task = asyncio.ensure_future(self._serve(self._connections, reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up, down = (Link(self._network, way, seeded(self._seed, number, way)) for way in (UP, DOWN))
        sides, end = [writer], _reset
        try:
            await self._handshake(up, down)
            far_reader, far = await asyncio.open_connection(*self._target)
            sides.append(far)
            await _both(
                _Pipe(reader, far, up, self._now_s, self._buffer),
                _Pipe(far_reader, writer, down, self._now_s, self._buffer),
            )
            end = _close
        except OSError:
            pass  # one side was reset or is not there: so is the other
        finally:
            for each in sides:
                end(each)

    async def _handshake(self, up: Link, down: Link) -> None:
        """The round trip that a connection costs before its first byte."""
        for link in (up, down):
            now_s = self._now_s()
            await asyncio.sleep(link.arrives(now_s, 0) - now_s)


class _Pipe:
    """One direction of one relayed connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: Link,
        now_s: Callable[[], float],
        most_bytes: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._link = link
        self._now_s = now_s
        self._most = most_bytes
        self._held = 0
        self._taken = asyncio.Event()
        self._sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take(self) -> None:
        """Read what is sent until its end; raises `OSError` one delay after a reset."""
        while True:
            try:
                data = await self._reader.read(16_384)
            except OSError:
                await self._until(self._link.arrives(self._now_s(), 0))
                raise
            self._held += len(data)
            self._sent.put_nowait((self._link.arrives(self._now_s(), len(data)), data))
            if not data:
                return
            while self._held > self._most:
                self._taken.clear()
                await self._taken.wait()

    async def give(self) -> None:
        """Write what has arrived, and then its end."""
        while True:
            due_s, data = await self._sent.get()
            await self._until(due_s)
            if not data:
                self._writer.write_eof()
                return
            self._writer.write(data)
            await self._writer.drain()
            self._held -= len(data)
            self._taken.set()

    async def _until(self, due_s: float) -> None:
        if (left := due_s - self._now_s()) > 0:
            await asyncio.sleep(left)


async def _both(*pipes: _Pipe) -> None:
    """Run two directions to their ends; the first failure stops everything."""
    tasks = [asyncio.ensure_future(work) for pipe in pipes for work in (pipe.take(), pipe.give())]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once; the peer sees a reset."""
    held = writer.get_extra_info("socket")
    if held is not None and held.fileno() >= 0:
        with suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
