"""The process of one peer: `python -m tests.benchmarks.clients.worker NAME LAYER [--in-memory]`.

Reads one question a line, a JSON object with `ask` and its arguments, and answers in one line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from tests.benchmarks.clients import byhand, layers, peers

CLOCK_READS = 50_000


class Questions:
    """What a worker can be asked; each method is one question."""

    def __init__(self, name: str, layer: str, in_memory: bool) -> None:
        if layer == "stub":
            layers.install_stubs()
        self.layer = layer
        self.peer = peers.row(name).switch_on(in_memory)
        self.loop = asyncio.new_event_loop()
        self._callers: dict[tuple[str, str], Callable[..., Any]] = {}

    def learn(self, library: str, seen: byhand.Written) -> None:
        """Give by hand its constants."""
        assert isinstance(self.peer, byhand.ByHand)
        self.peer.learn(library, seen)

    def written(self, library: str) -> byhand.Written:
        """What one request writes."""
        assert self.peer.pipeline is not None
        return byhand.written(self.peer.pipeline, lambda: self._read(library, "fake-chunks16"))

    def cpu(self, library: str, mode: str, chunks: int, times: int) -> list[int]:
        """Thread CPU of each of some whole streams, nanoseconds."""
        model = f"fake-chunks{chunks}"
        gc.collect()
        if mode == "async":
            found = self.loop.run_until_complete(self._cpu_later(library, model, times))
        else:
            found = self._cpu(library, model, times)
        self._flush()
        return found

    def clock(self) -> float:
        """Nanoseconds that one read of the clock costs."""
        read, numbers = time.monotonic_ns, range(CLOCK_READS)
        began = time.thread_time_ns()
        for _ in numbers:
            read()
        between = time.thread_time_ns()
        for _ in numbers:
            pass
        return (2 * between - began - time.thread_time_ns()) / CLOCK_READS

    def held(self, library: str, streams: int, at: list[int]) -> list[float]:
        """Bytes held by each of some open streams after so many chunks.

        The latest chunk is the application's, as it is in any loop.
        """
        self._read(library, f"fake-chunks{max(at) + 1}")
        gc.collect()
        tracemalloc.start()
        began = tracemalloc.get_traced_memory()[0]
        opened = [iter(self._opened(library, f"fake-chunks{max(at) + 1}")) for _ in range(streams)]
        found, done, latest = [], 0, [None] * streams
        for wanted in at:
            for number, stream in enumerate(opened):
                for _ in range(wanted - done):
                    latest[number] = next(stream)
            done = wanted
            gc.collect()
            found.append((tracemalloc.get_traced_memory()[0] - began) / streams)
        tracemalloc.stop()
        return found

    def collections(self, library: str, chunks: int, times: int) -> list[int]:
        """Garbage collections of each generation during some whole streams."""
        self._read(library, f"fake-chunks{chunks}")
        gc.collect()
        before = [each["collections"] for each in gc.get_stats()]
        self._cpu(library, f"fake-chunks{chunks}", times)
        return [each["collections"] - b for each, b in zip(gc.get_stats(), before, strict=True)]

    def own(self, library: str, mode: str) -> bool:
        """Whether the application is given the very object that the client made."""
        call = self._caller(library, mode)
        if mode == "async":
            got = self.loop.run_until_complete(
                self.peer.later(library, lambda: call("fake-chunks16"))
            )
        else:
            got = self.peer.sync(library, lambda: call("fake-chunks16"))
        return got is layers.handed.get(library)

    def _caller(self, library: str, mode: str) -> Callable[..., Any]:
        key = library, mode
        if key not in self._callers:
            client = layers.client(*key, self.layer, module=self.peer.module)
            self._callers[key] = layers.asking(library, client)
        return self._callers[key]

    def _opened(self, library: str, model: str) -> Any:
        call = self._caller(library, "sync")
        return self.peer.sync(library, lambda: call(model))

    def _read(self, library: str, model: str) -> None:
        for _ in self._opened(library, model):
            pass

    def _cpu(self, library: str, model: str, times: int) -> list[int]:
        call, found, clock = self._caller(library, "sync"), [], time.thread_time_ns
        for _ in range(times):
            began = clock()
            for _ in self.peer.sync(library, lambda: call(model)):
                pass
            found.append(clock() - began)
        return found

    async def _cpu_later(self, library: str, model: str, times: int) -> list[int]:
        call, found, clock = self._caller(library, "async"), [], time.thread_time_ns
        for _ in range(times):
            began = clock()
            async for _ in await self.peer.later(library, lambda: call(model)):
                pass
            found.append(clock() - began)
        return found

    def _flush(self) -> None:
        """Let exporters finish, so that they do not work while the next peer is measured."""
        if self.peer.pipeline is not None:
            self.peer.pipeline.tracers.force_flush()


def main() -> None:
    """Answer until there are no more questions."""
    name, layer, *rest = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    questions = Questions(name, layer, "--in-memory" in rest)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = getattr(questions, arguments.pop("ask"))(**arguments)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
