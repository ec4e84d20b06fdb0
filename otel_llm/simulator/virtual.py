"""An event loop whose time jumps: minutes of waiting pass in milliseconds, the same in every run.

    virtual.run(main())     # main sleeps for an hour; this returns at once

While anything is ready to run, time stands still; when only timers are left, it jumps to the next
of them. What a thread does takes no time at all: it runs to its end where it was asked for.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from otel_llm.simulator.transport import InProcessTransport

__all__ = ["DeadlockError", "InProcessTransport", "VirtualClock", "VirtualLoop", "run"]

T = TypeVar("T")
START_S = 1_000.0
"""What the virtual monotonic clock reads at first, seconds; zero would pass for unknown."""
START_WALL_NS = 1_767_225_600_000_000_000
"""What the virtual wall clock reads at first: 2026-01-01T00:00:00Z."""


class DeadlockError(RuntimeError):
    """Every task waits for another one, and no timer is left that could end it."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time. Sockets and signals have no place in it."""

    exact_timers = True
    """Those of a real loop are up to two milliseconds late."""

    def __init__(self) -> None:
        self._now_s = START_S
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        """The virtual time, seconds."""
        return self._now_s

    def run_in_executor(  # type: ignore[override]
        self,
        executor: object,  # noqa: ARG002
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Call *func* here and now, since a thread's own time would be another in every run."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(contextvars.copy_context().run(func, *args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits it
            done.set_exception(error)
        return done

    def _jump(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            raise DeadlockError(_waiting(self))
        self._now_s += timeout_s


class _Jumping(selectors.DefaultSelector):
    """Waits by moving the time on."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; if nothing is, the time until *timeout* has passed."""
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self._jump(timeout)
        return found


def _waiting(loop: VirtualLoop) -> str:
    """What all the tasks are waiting for."""
    places = sorted(_place(task) for task in asyncio.all_tasks(loop))
    told = "; ".join(places) or "there are none"
    return f"nothing can happen any more at {loop.time():.6f} s; tasks wait here: {told}"


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return task.get_name()
    code = frames[-1].f_code
    return f"{task.get_name()} at {code.co_qualname} ({code.co_filename}:{frames[-1].f_lineno})"


class VirtualClock:
    """Both clocks of a process, as `otel_llm.clock.Clock`, on the time of a virtual loop.

    Args:
        loop: The loop; without one it is the running one at each reading.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds of the clock that never goes back."""
        return (self._loop or asyncio.get_running_loop()).time()

    def monotonic_ns(self) -> int:
        """Nanoseconds of the clock that never goes back."""
        return round(self.monotonic() * 1e9)

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never steps."""
        return START_WALL_NS + self.monotonic_ns() - round(START_S * 1e9)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* on a virtual loop of its own and return what it returns.

    Raises:
        DeadlockError: Nothing is left that could wake any task.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
