"""Begins a sample with each request, and gives what it found when the request ends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from opentelemetry.metrics import Meter

from otel_llm.clock import SYSTEM_CLOCK, Anchor, Clock
from otel_llm.guard import guard
from otel_llm.host.gpu import GpuSampler
from otel_llm.host.gpu_values import observe, values
from otel_llm.host.sample import Probes, Sample
from otel_llm.host.settings import Hosts, HostSettings
from otel_llm.timeline import RequestRecorder, Side, Timeline

Finish = Callable[[Timeline], Mapping[str, int]]


class Watcher:
    """Looks at the machine while requests are open.

    Args:
        settings: What is looked at.
        clock: The clock of the requests.
        root: Where `/proc` and `/sys` lie.
        gpu: What samples the GPUs, if the settings ask for it; made here by default.
    """

    def __init__(
        self,
        settings: HostSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        root: Path = Path("/"),
        gpu: GpuSampler | None = None,
    ) -> None:
        self._sides = _SIDES[settings.host]
        self._probes: Probes | None = None
        if self._sides:
            with guard("host.open"):
                self._probes = Probes(clock, root)
        self._gpu = (gpu or GpuSampler(clock)) if settings.gpu else None
        _alive.add(self)

    def __call__(self, recorder: RequestRecorder) -> Finish | None:
        """A request begins. What is returned gives attributes of its span; it does not raise."""
        with guard("host.begin"):
            sample = None
            if self._probes is not None and recorder.side in self._sides:
                sample = Sample(self._probes)
            gpu = self._gpu
            if gpu is None or recorder.side is Side.CLIENT:
                return sample
            gpu.start()
            return partial(_with_gpu, sample, gpu, recorder.anchor)
        return None

    def observe(self, meter: Meter) -> None:
        """Create the metrics of the GPUs, if those are looked at."""
        if self._gpu is not None:
            with guard("host.metrics"):
                self._gpu.start()
                observe(self._gpu, meter)

    def close(self) -> None:
        """End the thread that samples GPUs, if there is one."""
        if self._gpu is not None:
            self._gpu.stop()

    def forked(self) -> None:
        """In a forked child: begin anew."""
        if self._probes is not None:
            self._probes.forked()
        if self._gpu is not None:
            self._gpu.forked()


def _with_gpu(
    sample: Sample | None, gpu: GpuSampler, anchor: Anchor, timeline: Timeline
) -> Mapping[str, int]:
    found = {} if sample is None else sample()
    with guard("host.gpu"):
        found.update(values(gpu, timeline, anchor))
    return found


_SIDES: Mapping[Hosts, frozenset[Side]] = {
    Hosts.OFF: frozenset(),
    Hosts.SERVERS: frozenset(set(Side) - {Side.CLIENT}),
    Hosts.ALL: frozenset(Side),
}
_alive: weakref.WeakSet[Watcher] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_alive):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
