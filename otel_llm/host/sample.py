"""One sample of the host: read when a request begins, and once more when it ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

from otel_llm import semconv
from otel_llm.clock import Clock
from otel_llm.guard import guard
from otel_llm.host.loop import LoopLag
from otel_llm.host.process import RunQueue, Throttling, node_reader, note_absent, usage_reader


class Probes:
    """What all samples of a process share. What cannot be told on this machine is None.

    Args:
        clock: The clock of the requests.
        root: Where `/proc` and `/sys` lie.
    """

    def __init__(self, clock: Clock, root: Path) -> None:
        self.clock = clock
        self.root = root
        self.throttling = Throttling.find(root)
        self.usage = usage_reader()
        self.node = node_reader(root)
        self._threads = threading.local()
        for what, found in (
            ("CPU throttling (cpu.stat of a group with a limit)", self.throttling),
            ("page faults", self.usage),
            ("the NUMA node", self.node),
        ):
            if found is None:
                note_absent(what)

    def run_queue(self) -> RunQueue | None:
        """That of the calling thread, opened once."""
        try:
            found: RunQueue | None = self._threads.run_queue
        except AttributeError:
            found = self._threads.run_queue = self._opened()
        return found

    def _opened(self) -> RunQueue | None:
        try:
            return RunQueue(self.root)
        except (OSError, IndexError, ValueError):
            note_absent("run-queue wait (schedstat)")
            return None

    def loop_lag(self) -> LoopLag | None:
        """That of the loop that runs in the calling thread, if one does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        lag: LoopLag | None = getattr(self._threads, "lag", None)
        if lag is None or lag.loop is not loop:
            lag = self._threads.lag = LoopLag(loop, self.clock)
        return lag

    def forked(self) -> None:
        """In a forked child: open files tell of the parent's threads."""
        self._threads = threading.local()


class Sample:
    """Everything as it was when the request began; called, it tells what has become of it."""

    __slots__ = (
        "_began_ns",
        "_lag",
        "_probes",
        "_queue",
        "_throttled",
        "_usage",
        "_waited",
    )

    def __init__(self, probes: Probes) -> None:
        self._lag: LoopLag | None = None
        self._probes = probes
        self._began_ns = probes.clock.monotonic_ns()
        self._queue = probes.run_queue()
        self._waited = b"" if self._queue is None else self._queue.read()
        if probes.throttling is not None:
            self._throttled = probes.throttling.read(self._began_ns)
        self._usage = None if probes.usage is None else probes.usage()
        self._lag = probes.loop_lag()
        if self._lag is not None:
            self._lag.begin(self)

    def __call__(self, _timeline: object = None) -> dict[str, int]:
        """The attributes for what happened since; call it once. It does not raise."""
        found: dict[str, int] = {}
        with guard("host.end"):
            self._end(found)
        return found

    def _end(self, found: dict[str, int]) -> None:
        probes = self._probes
        lag, self._lag = self._lag, None
        if lag is not None:
            found[semconv.HOST_LOOP_LAG_MAX_US] = lag.end(self, self._began_ns) // 1000
        if self._queue is not None:
            with suppress(OSError):  # the thread that began the request has ended
                waited = self._queue.waited_ns(self._waited)
                found[semconv.HOST_RUN_QUEUE_US] = waited // 1000
        if probes.throttling is not None:
            us, periods = probes.throttling.read(probes.clock.monotonic_ns())
            found[semconv.HOST_CPU_THROTTLED_US] = us - self._throttled[0]
            found[semconv.HOST_CPU_THROTTLED_PERIODS] = periods - self._throttled[1]
        before = self._usage
        if probes.usage is not None and before is not None:
            usage = probes.usage()
            found[semconv.HOST_MINOR_FAULTS] = usage.ru_minflt - before.ru_minflt
            found[semconv.HOST_MAJOR_FAULTS] = usage.ru_majflt - before.ru_majflt
        node = None if probes.node is None else probes.node()
        if node is not None:
            found[semconv.HOST_NUMA_NODE] = node

    def __del__(self) -> None:
        if self._lag is not None:
            self._lag.forget(self)
