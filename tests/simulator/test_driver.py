"""The driver: when steps begin and end, and where their outputs go."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.simulator import virtual
from otel_llm.simulator.driver import Driver
from otel_llm.simulator.engine import Engine, EngineConfig, EngineRequest, Output, Step
from otel_llm.simulator.hardware import CostModel

STEP_S = 0.010


class Sink:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.scheduled_ns: int | None = None
        self.outputs: list[tuple[int, int, str | None]] = []
        self.error: Exception | None = None
        self.ended = asyncio.Event()

    def scheduled(self, at_ns: int) -> None:
        self.scheduled_ns = at_ns

    def output(self, output: Output, at_ns: int) -> None:
        self.outputs.append((at_ns, output.tokens, output.finished))
        if output.finished:
            self.ended.set()

    def failed(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


def an_engine() -> Engine:
    """Every step takes 10 ms."""
    return Engine(EngineConfig(num_blocks=64, cost=CostModel(overhead_s=STEP_S)))


def a_request(name: str = "a", tokens: int = 3) -> EngineRequest:
    """A short prompt."""
    return EngineRequest(id=name, prompt=[1, 2, 3], max_tokens=tokens)


def since_start(at_ns: int | None) -> float:
    """Seconds of virtual time."""
    return round((at_ns or 0) / 1e9 - virtual.START_S, 9)


async def driven(request: EngineRequest, **options: Any) -> Sink:
    """A request that was driven to its end on virtual time."""
    driver, sink = Driver(an_engine(), clock=virtual.VirtualClock(), **options), Sink()
    driver.submit(request, sink)
    await sink.ended.wait()
    return sink


def test_tokens_come_at_the_ends_of_steps() -> None:
    """Each step of 10 ms gives one token, and the last one the reason."""
    sink = virtual.run(driven(a_request()))
    found = [(since_start(at_ns), tokens, reason) for at_ns, tokens, reason in sink.outputs]
    assert found == [(0.01, 1, None), (0.02, 1, None), (0.03, 1, "length")]
    assert since_start(sink.scheduled_ns) == 0.0


def test_speed_shortens_the_steps() -> None:
    """Twice as fast, half the time."""
    sink = virtual.run(driven(a_request(), speed=2.0))
    assert [since_start(at_ns) for at_ns, _, _ in sink.outputs] == [0.005, 0.010, 0.015]


def test_a_speed_of_nothing_is_refused() -> None:
    """Time has to pass."""
    with pytest.raises(ValueError, match="speed is 0"):
        Driver(an_engine(), speed=0)


def test_a_request_joins_at_the_next_step() -> None:
    """Who comes during a step waits for its end."""

    async def main() -> float:
        driver, first, second = Driver(an_engine(), clock=virtual.VirtualClock()), Sink(), Sink()
        driver.submit(a_request("a"), first)
        await asyncio.sleep(0.004)
        driver.submit(a_request("b"), second)
        await second.ended.wait()
        return since_start(second.scheduled_ns)

    assert virtual.run(main()) == 0.010


def test_each_step_is_told() -> None:
    """The callback sees every step, when it has begun."""
    steps: list[Step] = []
    virtual.run(driven(a_request(), begun=steps.append))
    assert [since_start(step.started_ns) for step in steps] == [0.0, 0.01, 0.02]


def test_an_idle_driver_has_no_task() -> None:
    """It neither waits nor polls, and begins again when a request comes."""

    async def main() -> tuple[set[str], int]:
        driver, sink = Driver(an_engine(), clock=virtual.VirtualClock()), Sink()
        driver.submit(a_request("a"), sink)
        await asyncio.sleep(1)
        idle = {task.get_name() for task in asyncio.all_tasks()}
        again = Sink()
        driver.submit(a_request("b"), again)
        await again.ended.wait()
        return idle, len(again.outputs)

    idle, outputs = virtual.run(main())
    assert "engine" not in idle
    assert outputs == 3


def test_nothing_of_a_request_is_current_in_the_engine() -> None:
    """The task would keep the context of the request that happened to start it."""
    name = contextvars.ContextVar("name", default="nobody")

    class Curious(Sink):
        def scheduled(self, at_ns: int) -> None:
            self.seen = name.get()

    async def main() -> str:
        name.set("a request")
        sink = Curious()
        Driver(an_engine(), clock=virtual.VirtualClock()).submit(a_request(), sink)
        await sink.ended.wait()
        return sink.seen

    assert virtual.run(main()) == "nobody"


def test_an_aborted_request_gets_nothing_more() -> None:
    """Also of the step that is running; the engine is told the instant."""

    async def main() -> tuple[int, float, str | None]:
        driver, sink = Driver(an_engine(), clock=virtual.VirtualClock()), Sink()
        driver.submit(a_request(tokens=50), sink)
        await asyncio.sleep(0.025)
        driver.abort("a")
        await asyncio.sleep(1)
        truth = driver.engine.truths["a"]
        return len(sink.outputs), since_start(truth.finished_ns), truth.finish_reason

    assert virtual.run(main()) == (2, 0.025, "abort")


def test_closing_aborts_and_stops() -> None:
    """Nothing of it runs afterwards."""

    async def main() -> tuple[str | None, bool, set[str]]:
        driver = Driver(an_engine(), clock=virtual.VirtualClock())
        driver.submit(a_request(tokens=50), Sink())
        await asyncio.sleep(0.025)
        await driver.aclose()
        running = {task.get_name() for task in asyncio.all_tasks()}
        return driver.engine.truths["a"].finish_reason, driver.busy, running

    reason, busy, running = virtual.run(main())
    assert (reason, busy) == ("abort", False)
    assert "engine" not in running


def test_an_engine_that_breaks_down_is_told() -> None:
    """Whoever waits for it would wait for ever."""

    class Broken(Engine):
        def end_step(self, step: Step, now_ns: int) -> list[Output]:
            raise ZeroDivisionError

    async def main() -> Sink:
        engine, sink = Broken(an_engine().config), Sink()
        Driver(engine, clock=virtual.VirtualClock()).submit(a_request(), sink)
        await sink.ended.wait()
        return sink

    assert isinstance(virtual.run(main()).error, ZeroDivisionError)


async def test_real_steps_end_when_they_should() -> None:
    """On a real loop a step is never short, and at its best late by well under a millisecond."""
    begun: list[Step] = []
    driver, sink = Driver(an_engine(), begun=begun.append), Sink()
    driver.submit(a_request(tokens=30), sink)
    await sink.ended.wait()
    late_ns = [
        at_ns - step.started_ns - step.duration_ns
        for step, (at_ns, _, _) in zip(begun, sink.outputs, strict=True)
    ]
    assert 0 <= min(late_ns) < 200_000
    assert sink.outputs[-1][0] <= SYSTEM_CLOCK.monotonic_ns()
