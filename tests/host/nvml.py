"""NVML without a GPU: the functions that are called, on GPUs made up for a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What the library raises."""


@dataclass
class Gpu:
    """One GPU; None is a question to which it has no answer."""

    uuid: str = "GPU-aaaa"
    used: int | None = 80
    memory: tuple[int, int] | None = (60 << 30, 80 << 30)
    clock: int | None = 1980
    reasons: int | None = 0
    traffic: tuple[int | None, int | None, int | None, int | None] = (1000, 2000, 3, 4)


@dataclass
class FakeNvml:
    """The library; names, constants and arguments are those of `nvidia-ml-py`."""

    gpus: list[Gpu] = field(default_factory=lambda: [Gpu()])
    ended: int = 0

    NVML_SUCCESS = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVMLError = NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu) -> str:  # noqa: N802
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=_known(handle.used), memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> Any:  # noqa: N802
        used, total = _known(handle.memory)
        return SimpleNamespace(used=used, total=total, free=total - used)

    def nvmlDeviceGetClockInfo(self, handle: Gpu, type: int) -> int:  # noqa: A002, N802
        clock: int = _known(handle.clock)
        return clock if type == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Gpu) -> int:  # noqa: N802
        reasons: int = _known(handle.reasons)
        return reasons

    def nvmlDeviceGetFieldValues(self, handle: Gpu, fieldIds: Any) -> Any:  # noqa: N802, N803
        known = dict(zip((197, 198, 138, 139), handle.traffic, strict=True))
        answers = []
        for number, _scope in fieldIds:
            value = known[number]
            told = SimpleNamespace(ullVal=value or 0)
            answers.append(SimpleNamespace(nvmlReturn=3 if value is None else 0, value=told))
        return answers

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended += 1


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError
    return value
