"""How late a loop answers: on a clock moved by hand, and on a real loop that is blocked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.host.loop import INTERVAL_NS, MOST_KEPT, LoopLag
from otel_llm.testing import ManualClock

MS = 1_000_000
TICK_S = INTERVAL_NS / 1e9


class Handle:
    """What `call_later` gives."""

    cancelled = False

    def cancel(self) -> None:
        """The callback will not be called."""
        self.cancelled = True


class Loop:
    """A loop that does only what it is told to."""

    def __init__(self) -> None:
        self.timers: list[tuple[Callable[[], None], Handle]] = []

    def call_later(self, _delay: float, callback: Callable[[], None], *, context: Any) -> Handle:
        """Note the callback."""
        handle = Handle()
        self.timers.append((callback, handle))
        return handle

    def run(self) -> None:
        """Answer what is due now."""
        due, self.timers = self.timers, []
        for callback, handle in due:
            if not handle.cancelled:
                callback()


@pytest.fixture
def loop() -> Loop:
    """A loop without a life of its own."""
    return Loop()


@pytest.fixture
def lag(loop: Loop, clock: ManualClock) -> LoopLag:
    """What asks it."""
    return LoopLag(loop, clock)  # type: ignore[arg-type]


def late(clock: ManualClock, loop: Loop, ms: int) -> None:
    """The loop answers *ms* too late."""
    clock.advance(TICK_S + ms / 1000)
    loop.run()


class TestLag:
    """Requests are objects; only their identity counts."""

    @pytest.mark.parametrize("lags", [[0], [3, 50, 4], [50, 4, 3], [3, 4, 50], [50, 50]])
    def test_the_longest(
        self, lag: LoopLag, loop: Loop, clock: ManualClock, lags: list[int]
    ) -> None:
        """Of all answers since the request began."""
        began = clock.monotonic_ns()
        lag.begin("a")
        for each in lags:
            late(clock, loop, each)
        assert lag.end("a", began) == max(lags) * MS

    def test_only_what_a_request_has_lived_through(
        self, lag: LoopLag, loop: Loop, clock: ManualClock
    ) -> None:
        """A later request does not see earlier lags, nor the earlier part of one."""
        lag.begin("early")
        late(clock, loop, 80)
        clock.advance(TICK_S + 0.030)
        began = clock.monotonic_ns()
        lag.begin("late")
        clock.advance(0.005)
        loop.run()
        late(clock, loop, 2)
        assert lag.end("late", began) == 5 * MS

    def test_what_is_overdue_counts(self, lag: LoopLag, clock: ManualClock) -> None:
        """A request that blocked the loop itself ends before the loop can answer."""
        began = clock.monotonic_ns()
        lag.begin("a")
        clock.advance(TICK_S + 0.040)
        assert lag.end("a", began) == 40 * MS

    def test_an_answer_that_is_not_due_yet(self, lag: LoopLag, clock: ManualClock) -> None:
        """It is not late."""
        began = clock.monotonic_ns()
        lag.begin("a")
        assert lag.end("a", began) == 0

    def test_nothing_runs_while_no_request_is_open(
        self, lag: LoopLag, loop: Loop, clock: ManualClock
    ) -> None:
        """The next answer is the last one."""
        lag.begin("a")
        lag.end("a", 0)
        loop.run()
        assert loop.timers == []

    def test_a_request_that_nobody_ended(self, lag: LoopLag, loop: Loop) -> None:
        """Forgotten, it holds nothing up."""
        lag.begin("a")
        lag.forget("a")
        lag.forget("a")
        loop.run()
        assert loop.timers == []

    def test_one_timer_for_all_requests(self, lag: LoopLag, loop: Loop) -> None:
        """However many there are, one after the other or at once."""
        for name in ("a", "b"):
            lag.begin(name)
        lag.end("a", 0)
        lag.end("b", 0)
        lag.begin("c")
        assert len(loop.timers) == 1

    def test_a_loop_that_was_not_running(
        self, lag: LoopLag, loop: Loop, clock: ManualClock
    ) -> None:
        """Its time between two runs is no lag."""
        lag.begin("a")
        lag.end("a", 0)
        clock.advance(60)
        began = clock.monotonic_ns()
        lag.begin("b")
        clock.advance(TICK_S)
        loop.run()
        assert lag.end("b", began) == 0

    def test_memory_is_bounded(self, lag: LoopLag, loop: Loop, clock: ManualClock) -> None:
        """Ever shorter lags are the worst case."""
        lag.begin("a")
        for each in range(MOST_KEPT + 100, 0, -1):
            late(clock, loop, each)
        assert len(lag._at) == len(lag._lags) == MOST_KEPT


async def lag_of(blocked_s: float, *, last: bool) -> int:
    """Milliseconds of lag that a request sees whose loop is blocked, at its *last* or before."""
    lag = LoopLag(asyncio.get_running_loop(), SYSTEM_CLOCK)
    began = time.monotonic_ns()
    lag.begin("a")
    await asyncio.sleep(0.015)
    time.sleep(blocked_s)  # noqa: ASYNC251 - that is the point
    if not last:
        await asyncio.sleep(0.015)
    return lag.end("a", began) // MS


@pytest.mark.parametrize("last", [False, True], ids=["in the middle", "at the end"])
async def test_a_real_loop_that_is_blocked(last: bool) -> None:
    """A tenth of a second, less what was left of the interval."""
    assert 85 <= await lag_of(0.1, last=last) < 1000


async def test_a_timer_keeps_no_context_alive() -> None:
    """A request's context holds its span; the timer lives on after it."""
    lag = LoopLag(asyncio.get_running_loop(), SYSTEM_CLOCK)
    lag.begin("a")
    assert len(lag._context) == 0
    lag.end("a", 0)
