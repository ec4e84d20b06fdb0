"""The open-loop driver of load."""

from __future__ import annotations

import asyncio

import pytest

from otel_llm.simulator.load import drive
from otel_llm.simulator.workload import Arrival


def arrivals(*at_s: float) -> list[Arrival]:
    """One request at each time."""
    return [Arrival(n, at, "chat", "m", 10, 10, stream=True) for n, at in enumerate(at_s)]


async def test_requests_do_not_wait_for_earlier_ones() -> None:
    """A server that never answers is asked at every time all the same."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []
    start = loop.time()

    async def send(arrival: Arrival) -> None:
        asked.append(loop.time() - start)
        await asyncio.sleep(60)

    await drive(arrivals(0.0, 0.05, 0.1), send, limit_s=0.2)
    assert asked == pytest.approx([0.0, 0.05, 0.1], abs=0.03)


async def test_a_slow_sender_is_told() -> None:
    """What delays the sender itself is not blamed on the server."""

    async def send(arrival: Arrival) -> None:
        if arrival.index == 0:
            await asyncio.sleep(0)
            start = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - start < 0.15:
                pass  # the sending process is busy

    report = await drive(arrivals(0.0, 0.01), send)
    assert (report.late, report.unfinished) == (1, 0)
    assert report.latest_s == pytest.approx(0.14, abs=0.03)


async def test_a_punctual_sender_is_not_late() -> None:
    """Slow answers make nobody late."""

    async def send(arrival: Arrival) -> None:
        await asyncio.sleep(0.1)

    report = await drive(arrivals(0.0, 0.02), send)
    assert report.late == 0


async def test_the_limit_cuts_off_what_is_open() -> None:
    """Requests that are open are cancelled, those not sent yet never are."""
    ended: list[str] = []

    async def send(arrival: Arrival) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    before = asyncio.all_tasks()
    report = await drive(arrivals(0.0, 60.0), send, limit_s=0.05)
    assert (ended, report.unfinished) == (["cancelled"], 2)
    assert [each.sent_s is None for each in report.sent] == [False, True]
    assert asyncio.all_tasks() == before


async def test_cancelling_the_driver_leaves_nothing_running() -> None:
    """As the limit does."""

    async def send(arrival: Arrival) -> None:
        await asyncio.sleep(60)

    before = asyncio.all_tasks()
    driving = asyncio.ensure_future(drive(arrivals(0.0, 0.0), send))
    await asyncio.sleep(0.02)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert asyncio.all_tasks() == before


async def test_failures_are_results() -> None:
    """An exception of one request is counted and disturbs no other."""

    async def send(arrival: Arrival) -> None:
        if arrival.index == 0:
            raise TimeoutError

    report = await drive(arrivals(0.0, 0.0), send)
    assert [each.error for each in report.sent] == ["TimeoutError", None]
    assert report.unfinished == 0


async def test_progress_is_told_after_each() -> None:
    """How many have ended, and how many there are."""
    seen: list[tuple[int, int]] = []

    async def send(arrival: Arrival) -> None:
        pass

    await drive(arrivals(0.0, 0.0), send, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]
