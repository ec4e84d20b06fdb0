"""What is read of control groups, of the scheduler and of NUMA nodes."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from otel_llm.host import process
from otel_llm.host.process import SHARED_NS, KernelFile, RunQueue, Throttling, node_reader
from tests.host.machines import (
    SCHEDSTAT,
    V1,
    V1_MAX,
    V1_STAT,
    V2,
    V2_MAX,
    V2_STAT,
    v1_stat,
    v2_stat,
    write,
)

CGROUP = "proc/self/cgroup"
TOP = "sys/fs/cgroup/"


def read_on(queue: RunQueue) -> None:
    """Read until it fails: to end a thread takes the kernel a moment longer than Python."""
    while True:
        queue.read()


class TestThrottling:
    """Where `cpu.stat` lies, and what it says."""

    @pytest.mark.parametrize(
        ("group", "path", "stat"),
        [
            pytest.param(V2, V2_STAT, v2_stat, id="v2"),
            pytest.param("0::/\n", TOP + "cpu.stat", v2_stat, id="v2, own namespace"),
            pytest.param(V2, TOP + "cpu.stat", v2_stat, id="v2, only the top is mounted"),
            pytest.param("0::/../../x\n", TOP + "cpu.stat", v2_stat, id="v2, path outside"),
            pytest.param(V1, V1_STAT, v1_stat, id="v1"),
            pytest.param(V1, TOP + "cpu,cpuacct/cpu.stat", v1_stat, id="v1, only the top"),
            pytest.param("2:cpu,cpuacct:/app\n", TOP + "cpu/app/cpu.stat", v1_stat, id="v1, link"),
            pytest.param(V1 + "0::/app\n", V1_STAT, v1_stat, id="both, v1 has the CPU"),
            pytest.param("0::/app\n", TOP + "unified/app/cpu.stat", v2_stat, id="v2 beside v1"),
        ],
    )
    def test_found(self, tmp_path: Path, group: str, path: str, stat: object) -> None:
        """Microseconds and periods, whatever the version."""
        assert callable(stat)
        write(tmp_path, {CGROUP: group, path: stat(1234, 5)})
        found = Throttling.find(tmp_path)
        assert found is not None
        assert found.read(0) == (1234, 5)

    @pytest.mark.parametrize(
        "files",
        [
            {},
            {CGROUP: V2},
            {CGROUP: "nonsense"},
            {CGROUP: V2, V2_STAT: "usage_usec 1\nuser_usec 1\nsystem_usec 0\n"},
            {CGROUP: V2, V2_STAT: v2_stat(), V2_MAX: "max 100000\n"},
            {CGROUP: V1, V1_STAT: v1_stat(), V1_MAX: "-1\n"},
        ],
        ids=["no /proc", "no file", "nonsense", "no CPU controller", "no limit", "no limit, v1"],
    )
    def test_absent(self, tmp_path: Path, files: dict[str, str]) -> None:
        """Without a limit nothing can be throttled."""
        assert Throttling.find(write(tmp_path, files)) is None

    @pytest.mark.parametrize(
        "files",
        [
            {CGROUP: V2, V2_STAT: v2_stat(), V2_MAX: "50000 100000\n"},
            {CGROUP: V1, V1_STAT: v1_stat(), V1_MAX: "50000\n"},
        ],
        ids=["v2", "v1"],
    )
    def test_a_limit(self, tmp_path: Path, files: dict[str, str]) -> None:
        """Whatever it is."""
        assert Throttling.find(write(tmp_path, files)) is not None

    def test_requests_share_what_was_read(self, tmp_path: Path) -> None:
        """For five milliseconds."""
        write(tmp_path, {CGROUP: V2, V2_STAT: v2_stat(1, 1)})
        found = Throttling.find(tmp_path)
        assert found is not None
        assert found.read(0) == (1, 1)
        write(tmp_path, {V2_STAT: v2_stat(9, 2)})
        assert [found.read(SHARED_NS - 1), found.read(SHARED_NS)] == [(1, 1), (9, 2)]


class TestRunQueue:
    """The second number of `schedstat`."""

    def test_nanoseconds(self, tmp_path: Path) -> None:
        """As the kernel counts them, since an earlier moment."""
        write(tmp_path, {SCHEDSTAT: "5 70 9\n"})
        found = RunQueue(tmp_path)
        before = found.read()
        assert found.waited_ns(before) == 0
        write(tmp_path, {SCHEDSTAT: "5 95 9\n"})
        assert found.waited_ns(before) == 25

    def test_a_kernel_that_does_not_count(self, tmp_path: Path) -> None:
        """Its zeros say nothing."""
        with pytest.raises(OSError, match="statistics"):
            RunQueue(write(tmp_path, {SCHEDSTAT: "0 0 0\n"}))

    @pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="Linux only")
    def test_a_thread_that_has_ended(self) -> None:
        """Its numbers are gone, soon after, and that is an error of the system."""
        found: list[RunQueue] = []
        thread = threading.Thread(target=lambda: found.append(RunQueue(Path("/"))))
        thread.start()
        thread.join()
        with pytest.raises(OSError, match="No such process"):
            read_on(found[0])


def test_nodes_of_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges and single ones; nodes without CPUs have an empty list."""
    lists = {"node0": "0-1,4\n", "node1": "2-3,5\n", "node2": "\n"}
    write(tmp_path, {f"sys/devices/system/node/{k}/cpulist": v for k, v in lists.items()})
    assert process._nodes(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1, 5: 1}


def test_a_machine_without_nodes(tmp_path: Path) -> None:
    """Nothing tells."""
    assert node_reader(tmp_path) is None


def test_a_file_is_closed_with_its_reader(tmp_path: Path) -> None:
    """Threads come and go; their files must not stay open."""
    write(tmp_path, {"x": "1"})
    file = KernelFile(tmp_path / "x", 8)
    number = file._fd
    assert file.read() == b"1"
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
