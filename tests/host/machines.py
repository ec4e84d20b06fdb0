"""Machines as directories with the files of /proc and /sys, and requests on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otel_llm.emit.request import RequestInfo
from otel_llm.emit.telemetry import Telemetry
from otel_llm.host.settings import Hosts, HostSettings
from otel_llm.host.watch import Watcher
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Side

V2, V1 = "0::/pod/app\n", "3:memory:/app\n2:cpu,cpuacct:/app\n"
V2_MAX, V1_MAX = "sys/fs/cgroup/pod/app/cpu.max", "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us"
V2_STAT, V1_STAT = "sys/fs/cgroup/pod/app/cpu.stat", "sys/fs/cgroup/cpu,cpuacct/app/cpu.stat"
SCHEDSTAT = "proc/thread-self/schedstat"
CHAT = RequestInfo(operation="chat", provider="demo", model="tiny")
ON = HostSettings(Hosts.SERVERS)
HOST = "otel_llm.host."


def v2_stat(us: int = 0, periods: int = 0) -> str:
    """`cpu.stat` of version 2."""
    return (
        "usage_usec 900\nuser_usec 600\nsystem_usec 300\n"
        f"nr_periods 10\nnr_throttled {periods}\nthrottled_usec {us}\n"
        "nr_bursts 0\nburst_usec 0\n"
    )


def v1_stat(us: int = 0, periods: int = 0) -> str:
    """`cpu.stat` of version 1."""
    return f"nr_periods 10\nnr_throttled {periods}\nthrottled_time {us * 1000}\n"


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write these files below *root*, in place, as the kernel does; returns *root*."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, **files: str) -> Path:
    """A machine with a CPU limit, scheduler statistics and two NUMA nodes."""
    return write(
        root,
        {
            "proc/self/cgroup": V2,
            V2_STAT: v2_stat(),
            V2_MAX: "50000 100000\n",
            SCHEDSTAT: "5000000 1000000 7\n",
            "sys/devices/system/node/node0/cpulist": "0-1023\n",
            **files,
        },
    )


def telemetry(captured: CapturedTelemetry, clock: ManualClock, root: Path) -> Telemetry:
    """Telemetry with samples of the machine at *root*."""
    return watched(captured, clock, Watcher(ON, clock=clock, root=root))


def watched(captured: CapturedTelemetry, clock: Any, watcher: Watcher) -> Telemetry:
    """Telemetry with *watcher* around its requests."""
    providers = captured.tracer_provider, captured.meter_provider
    return Telemetry(*providers, clock=clock, around=watcher)


def told(captured: CapturedTelemetry, prefix: str = HOST) -> dict[str, Any]:
    """What the request span says, without the prefix of the names."""
    (span,) = [each for each in captured.spans if each.name == CHAT.span_name]
    found = {name: value for name, value in span.attributes.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items()}


def one_request(made: Telemetry, side: Side = Side.SERVER) -> None:
    """A request that begins and ends."""
    made.start(CHAT, side).finish()
