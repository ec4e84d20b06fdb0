"""A proxy and an upstream in a loop of their own thread, for tests that ask hundreds of times."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from otel_llm.servers.proxy.settings import Address
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.servers.proxy.builders import Answered, Wire, ask, proxied, upstream

T = TypeVar("T")
HOPS = {b"connection", b"keep-alive", b"transfer-encoding"}
OURS = {"traceparent", "tracestate"}


@dataclass(frozen=True)
class Script:
    """What the upstream sends, piece by piece, and whether it then hangs up."""

    pieces: Sequence[bytes]
    hangs_up: bool = False


@dataclass(frozen=True)
class Seen:
    """One exchange: what the client read, and what the upstream did."""

    answer: Answered
    line: bytes
    headers: dict[str, str]
    body: bytes

    @property
    def kept(self) -> list[tuple[bytes, bytes]]:
        """The answer's headers without those of one hop."""
        return [each for each in self.answer.headers if each[0].lower() not in HOPS]

    @property
    def passed(self) -> dict[str, str]:
        """The request's headers without those of one hop, and without ours."""
        gone = OURS | {each.decode() for each in HOPS}
        return {name: value for name, value in self.headers.items() if name not in gone}


class Pair:
    """An upstream that follows a script, asked directly and through the proxy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, captured: CapturedTelemetry) -> None:
        self._loop = loop
        self.captured = captured
        self.script = Script(())
        self.direct = self.through = Address("", 0)
        self._last: Wire | None = None

    async def handle(self, wire: Wire) -> None:
        """Serve one connection."""
        while await wire.asked():
            self._last = wire
            script = self.script
            await wire.send(*script.pieces)
            if script.hangs_up:
                return

    def exchange(self, script: Script, sent: bytes) -> tuple[Seen, Seen]:
        """The same exchange directly and through the proxy."""
        self.script = script
        return self._run(self._seen(self.direct, sent)), self._run(self._seen(self.through, sent))

    async def _seen(self, address: Address, sent: bytes) -> Seen:
        answer = await ask(address, sent)
        wire = self._last
        assert wire is not None
        return Seen(answer, wire.head.split(b"\r\n", 1)[0], wire.headers, wire.body)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def pair(**settings: Any) -> Iterator[Pair]:
    """Both, until the block is over."""
    loop = asyncio.new_event_loop()
    found = Pair(loop, captured_telemetry())
    started, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with (
            upstream(found.handle) as address,
            proxied(address, found.captured, **settings) as proxy,
        ):
            found.direct, found.through = address, proxy.address
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()
