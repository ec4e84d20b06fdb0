"""What a request span says of its host, on made-up machines and on this one."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_llm.host.settings import Hosts, HostSettings
from otel_llm.host.watch import Watcher
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Side
from tests.host.machines import (
    CHAT,
    ON,
    SCHEDSTAT,
    V2_STAT,
    machine,
    one_request,
    telemetry,
    told,
    v2_stat,
    watched,
    write,
)

linux = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="Linux tells what is tested here"
)


class TestMadeUpMachine:
    """Numbers that were written into files."""

    def test_what_happened_meanwhile(
        self, captured: CapturedTelemetry, clock: ManualClock, tmp_path: Path
    ) -> None:
        """Differences between the end and the beginning, in whole microseconds."""
        made = telemetry(captured, clock, machine(tmp_path))
        live = made.start(CHAT, Side.SERVER)
        clock.advance(1)
        write(tmp_path, {SCHEDSTAT: "9000000 1250999 9\n", V2_STAT: v2_stat(70_000, 2)})
        live.finish()
        found = told(captured)
        assert {name: found[name] for name in found if "faults" not in name} == {
            "run_queue_us": 250,
            "cpu_throttled_us": 70_000,
            "cpu_throttled_periods": 2,
            "numa_node": 0,
        }

    def test_a_known_zero_is_written(
        self, captured: CapturedTelemetry, clock: ManualClock, tmp_path: Path
    ) -> None:
        """Nothing happened, and that is known."""
        one_request(telemetry(captured, clock, machine(tmp_path)))
        found = told(captured)
        assert (found["cpu_throttled_us"], found["run_queue_us"]) == (0, 0)

    def test_what_a_machine_does_not_tell_is_absent(
        self,
        captured: CapturedTelemetry,
        clock: ManualClock,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """And said once, on level debug."""
        caplog.set_level(logging.DEBUG, "otel_llm")
        made = telemetry(captured, clock, tmp_path)
        one_request(made)
        assert set(told(captured)) <= {"minor_faults", "major_faults"}
        made.start(CHAT, Side.SERVER).finish()
        messages = [each.getMessage() for each in caplog.records]
        assert [each.split(" ")[0] for each in messages] == ["CPU", "the", "run-queue"]
        assert {each.levelno for each in caplog.records} == {logging.DEBUG}

    def test_files_that_go_away(
        self, captured: CapturedTelemetry, clock: ManualClock, tmp_path: Path
    ) -> None:
        """What was open stays readable; the request ends as it would have."""
        made = telemetry(captured, clock, machine(tmp_path))
        live = made.start(CHAT, Side.SERVER)
        (tmp_path / V2_STAT).unlink()
        clock.advance(1)
        live.finish()
        assert told(captured)["cpu_throttled_us"] == 0

    def test_a_file_that_says_nonsense(
        self,
        captured: CapturedTelemetry,
        clock: ManualClock,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """An error of ours is no error of the application's."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        made = telemetry(captured, clock, machine(tmp_path))
        live = made.start(CHAT, Side.SERVER)
        write(tmp_path, {SCHEDSTAT: "x\n"})
        live.finish()
        assert captured.span(CHAT.span_name).attributes["otel_llm.outcome"] == "ok"


class TestWhen:
    """Which requests are sampled."""

    @pytest.mark.parametrize(
        ("hosts", "sides"),
        [
            (Hosts.OFF, set()),
            (Hosts.SERVERS, {Side.PROXY, Side.SERVER, Side.ENGINE}),
            (Hosts.ALL, set(Side)),
        ],
    )
    def test_sides(
        self, clock: ManualClock, tmp_path: Path, hosts: Hosts, sides: set[Side]
    ) -> None:
        """Clients only where it is asked for."""
        root, found = machine(tmp_path), set()
        for side in Side:
            captured = captured_telemetry(clock=clock)
            watcher = Watcher(HostSettings(hosts), clock=clock, root=root)
            one_request(watched(captured, clock, watcher), side)
            if told(captured):
                found.add(side)
        assert found == sides

    def test_off_unless_switched_on(self, captured: CapturedTelemetry) -> None:
        """Nothing is there that could look."""
        one_request(captured.telemetry)
        assert (captured.telemetry.around, told(captured)) == (None, {})

    def test_a_request_that_is_not_sampled(self, clock: ManualClock, tmp_path: Path) -> None:
        """Nobody would read it, so nothing is read."""
        captured = captured_telemetry(sampler=ALWAYS_OFF, clock=clock)
        made = telemetry(captured, clock, machine(tmp_path))
        live = made.start(CHAT, Side.SERVER)
        assert live._around is None
        live.finish()

    def test_after_a_fork_files_are_opened_anew(self, clock: ManualClock, tmp_path: Path) -> None:
        """Those of the parent tell of its threads."""
        watcher = Watcher(ON, clock=clock, root=machine(tmp_path))
        probes = watcher._probes
        assert probes is not None
        before = probes.run_queue()
        assert probes.run_queue() is before
        watcher.forked()
        assert probes.run_queue() is not before


@contextmanager
def crowded() -> Iterator[None]:
    """This thread shares one CPU with two processes that never rest."""
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    spin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    others = [
        subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for each in others:
            assert each.stdout is not None
            each.stdout.readline()
        os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for each in others:
            each.kill()
            each.communicate()


@linux
class TestThisMachine:
    """Real waits, faults and lags."""

    def found(self, work: Any) -> dict[str, Any]:
        """What a request says during which *work* was done."""
        captured = captured_telemetry()
        live = watched(captured, captured.telemetry.clock, Watcher(ON)).start(CHAT, Side.SERVER)
        work()
        live.finish()
        return told(captured)

    def test_waiting_for_a_cpu(self) -> None:
        """Of three that want one CPU each gets a third."""

        def compute() -> None:
            began = time.thread_time()
            while time.thread_time() - began < 0.05:
                pass

        with crowded():
            found = self.found(compute)
        assert found["run_queue_us"] > 20_000

    def test_page_faults(self) -> None:
        """Memory that is touched for the first time."""
        pages = 500

        def touch() -> None:
            with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
                if hasattr(mmap, "MADV_NOHUGEPAGE"):
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
                for page in range(pages):
                    memory[page * mmap.PAGESIZE] = 1

        found = self.found(touch)
        assert found["minor_faults"] >= pages
        assert found["major_faults"] >= 0

    def test_a_request_that_another_thread_ends(self) -> None:
        """It began where no loop runs, and its thread is gone."""

        def begin(into: list[Any], captured: CapturedTelemetry) -> None:
            made = watched(captured, captured.telemetry.clock, Watcher(ON))
            into.append(made.start(CHAT, Side.SERVER))

        captured, begun = captured_telemetry(), list[Any]()
        thread = threading.Thread(target=begin, args=(begun, captured))
        thread.start()
        thread.join()
        begun[0].finish()
        assert "loop_lag_max_us" not in told(captured)
        assert told(captured)["minor_faults"] >= 0

    async def test_a_blocked_loop(self) -> None:
        """Another request's work on the loop is what this one had to wait for."""
        captured = captured_telemetry()
        made = watched(captured, captured.telemetry.clock, Watcher(ON))

        async def streams() -> None:
            live = made.start(CHAT, Side.SERVER)
            for _ in range(10):
                await asyncio.sleep(0.005)
            live.finish()

        async def blocks() -> None:
            await asyncio.sleep(0.02)
            time.sleep(0.1)  # noqa: ASYNC251 - that is the point

        await asyncio.gather(streams(), blocks())
        assert 85_000 <= told(captured)["loop_lag_max_us"] < 1_000_000
