"""Drives an engine on the running event loop: begins its steps, waits, and tells their outputs.

The engine is told what the clock really says, so that its truth is true also when the loop was
late. What comes out is handed over at once and not through the loop, since a reader that is slow
must not change when a token was made.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Protocol

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.simulator.engine import Engine, EngineRequest, Output, Step

LATE_S = 2.2e-3
"""A loop's timers are late by up to this: the system counts in milliseconds, rounded up twice."""
SHORT_S = 1.2e-3
"""The shortest timer is late by up to this."""


class Sink(Protocol):
    """Where the outputs of one request go. Called from the driver's task; must not block."""

    def scheduled(self, at_ns: int) -> None:
        """The first step with this request has begun."""

    def output(self, output: Output, at_ns: int) -> None:
        """A step that produced tokens of this request is over."""

    def failed(self, error: Exception) -> None:
        """The engine has broken down; nothing more will come."""


class Driver:
    """Runs one engine for as long as it has requests; there is no task while it has none.

    Args:
        engine: The engine; nobody else may step it.
        clock: Where the engine's instants are read, monotonic nanoseconds.
        speed: How many times faster than they should steps take. Instants stay those of *clock*.
        begun: Called with each step when it has begun.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock = SYSTEM_CLOCK,
        speed: float = 1.0,
        begun: Callable[[Step], None] | None = None,
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed is {speed}; it must be above 0")
        self.engine = engine
        self.clock = clock
        self._speed = speed
        self._begun = begun
        self._sinks: dict[str, Sink] = {}
        self._unscheduled: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._sinks)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Hand a request to the engine; raises what its `submit` raises."""
        self.engine.submit(request, self.clock.monotonic_ns())
        self._sinks[request.id] = sink
        self._unscheduled.add(request.id)
        if self._task is None:
            # A context of its own: that of the request that happens to wake it would live on.
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="engine", context=contextvars.Context()
            )

    def abort(self, request_id: str) -> None:
        """Give a request up; one that has ended is passed over."""
        if self._sinks.pop(request_id, None) is not None:
            self._unscheduled.discard(request_id)
            self.engine.abort(request_id, self.clock.monotonic_ns())

    async def aclose(self) -> None:
        """Abort what is open and stop."""
        for request_id in list(self._sinks):
            self.abort(request_id)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._sinks:
                await self._step()
        except Exception as error:  # noqa: BLE001 - those who wait for the engine must know
            sinks, self._sinks = self._sinks, {}
            self._unscheduled.clear()
            for sink in sinks.values():
                sink.failed(error)
        finally:
            self._task = None

    async def _step(self) -> None:
        begun_ns = self.clock.monotonic_ns()
        step = self.engine.begin_step(begun_ns)
        if step is None:
            raise RuntimeError(f"the engine has forgotten {len(self._sinks)} requests")
        self._tell_scheduled(step, begun_ns)
        if self._begun is not None:
            self._begun(step)
        await self._until(begun_ns + round(step.duration_ns / self._speed))
        ended_ns = self.clock.monotonic_ns()
        for output in self.engine.end_step(step, ended_ns):
            self._hand_over(output, ended_ns)

    def _tell_scheduled(self, step: Step, at_ns: int) -> None:
        if self._unscheduled:
            for share in step.shares:
                request_id = share.sequence.request.id
                if request_id in self._unscheduled:
                    self._unscheduled.discard(request_id)
                    self._sinks[request_id].scheduled(at_ns)

    def _hand_over(self, output: Output, at_ns: int) -> None:
        sink = self._sinks.get(output.request_id)
        if sink is None:
            return  # it was given up during the step
        if output.finished is not None:
            del self._sinks[output.request_id]
        sink.output(output, at_ns)

    async def _until(self, at_ns: int) -> None:
        """Wait for an instant: asleep to just before it, then giving way until it has come."""
        exact = getattr(asyncio.get_running_loop(), "exact_timers", False)
        while (left_s := (at_ns - self.clock.monotonic_ns()) / 1e9) > 0:
            if exact:
                await asyncio.sleep(left_s)
            elif left_s > LATE_S:
                await asyncio.sleep(left_s - LATE_S)
            else:
                await asyncio.sleep(1e-6 if left_s > SHORT_S else 0)
