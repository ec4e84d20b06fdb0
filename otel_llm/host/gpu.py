"""NVIDIA GPUs through NVML, sampled by one thread, as the requests of this process see them.

NVML calls may take milliseconds, and what it says of use is a mean of the last sixth of a second
or more. So a thread asks four times a second and keeps ten minutes; requests and metrics take what
they need from there. Needs `nvidia-ml-py` (extra `gpu`) and a driver; without them nothing is told.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from otel_llm.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("otel_llm")
INTERVAL_S = 0.25
KEPT = 2400
"""Samples: ten minutes."""
IDLE = 1
"""The bit of `throttle_reasons` for a GPU that has nothing to do; not kept, for it slows nobody."""


class Device(NamedTuple):
    """One GPU: what NVML calls it, and its handle."""

    number: int
    uuid: str
    model: str
    handle: Any


class GpuState(NamedTuple):
    """One GPU at one moment; None is what NVML does not tell of it.

    `throttle_reasons` are NVML's bits without the one for an idle GPU. Traffic is bytes in all.
    """

    utilization_percent: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    pcie_sent: int | None = None
    pcie_received: int | None = None
    nvlink_sent: int | None = None
    nvlink_received: int | None = None


class GpuSample(NamedTuple):
    """All GPUs of this process at one moment, monotonic nanoseconds."""

    at_ns: int
    states: tuple[GpuState, ...]


def nvml() -> Any:
    """The library, initialised; raises `ImportError` or its own error without package or driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class GpuSampler:
    """Samples the GPUs that this process may use; `CUDA_VISIBLE_DEVICES` limits them.

    Args:
        clock: The clock of the requests.
        load: Gives NVML; raises where there is none.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, load: Callable[[], Any] = nvml) -> None:
        self._clock = clock
        self._load = load
        self.devices: tuple[Device, ...] = ()
        self._samples: deque[GpuSample] = deque(maxlen=KEPT)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it was started in this process."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otel-llm-gpu", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread for good; a second is waited for a call of NVML that hangs."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1)
        self._samples.clear()

    def forked(self) -> None:
        """In a forked child: neither thread nor handles have come along."""
        self._thread, self._stop = None, threading.Event()
        self.devices = ()
        self._samples.clear()

    def latest(self) -> GpuSample | None:
        """The last sample, or None while there is none."""
        return self._samples[-1] if self._samples else None

    def before(self, at_ns: int) -> GpuSample | None:
        """The last sample until that moment, if it is not older than a second; else None."""
        place = bisect_right(self._samples, at_ns, key=_moment)
        found = self._samples[place - 1] if place else None
        return found if found is not None and at_ns - found.at_ns <= 1_000_000_000 else None

    def sample(self, library: Any) -> None:
        """Ask every GPU once."""
        states = tuple(_state(library, each.handle) for each in self.devices)
        self._samples.append(GpuSample(self._clock.monotonic_ns(), states))

    def _run(self) -> None:
        stop = self._stop
        try:
            library = self._load()
        except Exception as error:  # noqa: BLE001 - the package is missing, or NVML says no
            _log.debug("no GPU is looked at: NVML is not there (%s)", type(error).__name__)
            return
        try:
            self.devices = tuple(devices(library))
            while self.devices and not stop.is_set():
                self.sample(library)
                stop.wait(INTERVAL_S)
        except Exception as error:  # noqa: BLE001 - a driver that was unloaded
            _log.debug("GPUs are not looked at any more (%s)", type(error).__name__)
        finally:
            with suppress(Exception):
                library.nvmlShutdown()


def _moment(sample: GpuSample) -> int:
    return sample.at_ns


def devices(library: Any) -> Iterable[Device]:
    """The GPUs that this process may use, by NVML's own order."""
    wanted = _visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        uuid = library.nvmlDeviceGetUUID(handle)
        if wanted is None or any(each == str(index) or uuid.startswith(each) for each in wanted):
            yield Device(index, uuid, library.nvmlDeviceGetName(handle), handle)


def _visible(given: str | None) -> list[str] | None:
    """Indices and beginnings of names; None for all. Parts of a GPU (MIG) are left out."""
    if given is None:
        return None
    names = [each.strip() for each in given.split(",")]
    return [each for each in names if each.isdigit() or each.startswith("GPU-")]


def _state(library: Any, handle: Any) -> GpuState:
    """What one GPU tells; each question by itself, for no GPU answers all."""
    use = _asked(library, library.nvmlDeviceGetUtilizationRates, handle)
    memory = _asked(library, library.nvmlDeviceGetMemoryInfo, handle)
    reasons = _asked(library, library.nvmlDeviceGetCurrentClocksEventReasons, handle)
    return GpuState(
        None if use is None else int(use.gpu),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
        _asked(library, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
        _asked(library, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
        None if reasons is None else int(reasons) & ~IDLE,
        *_traffic(library, handle),
    )


def _traffic(library: Any, handle: Any) -> list[int | None]:
    """Bytes over PCIe sent and received, and over all NVLinks, each since the driver was loaded."""
    # NVLink is told in KiB; the scope -1 asks for all links together.
    fields = (
        (library.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
        (library.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
        (library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        (library.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    )
    answers = _asked(library, library.nvmlDeviceGetFieldValues, handle, list(fields))
    if answers is None:
        return [None] * len(fields)
    scales = (1, 1, 1024, 1024)
    return [
        int(answer.value.ullVal) * scale if answer.nvmlReturn == library.NVML_SUCCESS else None
        for answer, scale in zip(answers, scales, strict=True)
    ]


_ALL_LINKS = 2**32 - 1


def _asked(library: Any, question: Callable[..., Any], *given: Any) -> Any:
    try:
        return question(*given)
    except library.NVMLError:
        return None
