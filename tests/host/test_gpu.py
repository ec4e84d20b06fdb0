"""GPUs through NVML: on spans, as metrics, and where there are none."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest

from otel_llm.host import gpu
from otel_llm.host.gpu import GpuSampler
from otel_llm.host.gpu_values import REASONS
from otel_llm.host.settings import HostSettings
from otel_llm.host.watch import Watcher
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Mark, Side
from tests.host.machines import CHAT, told, watched
from tests.host.nvml import FakeNvml, Gpu

GPU = "otel_llm.gpu."
GB = 1 << 30


class Stopped(GpuSampler):
    """Sampled by hand; its thread never starts."""

    def __init__(self, clock: ManualClock, library: FakeNvml) -> None:
        super().__init__(clock, lambda: library)
        self.library = library
        self.devices = tuple(gpu.devices(library))

    def start(self) -> None:
        """Nothing runs in the background of a test."""

    def now(self) -> None:
        """Take a sample."""
        self.sample(self.library)


@pytest.fixture
def library() -> FakeNvml:
    """One GPU at work."""
    return FakeNvml()


@pytest.fixture
def sampler(clock: ManualClock, library: FakeNvml) -> Stopped:
    """What looks at it."""
    return Stopped(clock, library)


def request(captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped) -> Any:
    """An open request on telemetry that looks at the GPUs."""
    watcher = Watcher(HostSettings(gpu=True), clock=clock, gpu=sampler)
    return watched(captured, clock, watcher).start(CHAT, Side.SERVER)


def phases(live: Any, clock: ManualClock, sampler: Stopped, states: list[Gpu]) -> None:
    """Queue, prefill and decode of a second each, with the first GPU as given in each of them."""
    live.recorder.mark(Mark.QUEUED)
    for mark, state in zip(
        (Mark.SCHEDULED, Mark.FIRST_TOKEN, Mark.LAST_TOKEN), states, strict=True
    ):
        sampler.library.gpus[0].__dict__.update(vars(state))
        clock.advance(0.9)
        sampler.now()
        clock.advance(0.1)
        live.recorder.mark(mark)
    live.finish()


class TestSpan:
    """Values in queue, prefill and decode."""

    def test_each_phase_has_its_own(
        self, captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped
    ) -> None:
        """The last sample before its end."""
        states = [Gpu(used=10), Gpu(used=99, reasons=4), Gpu(used=60, clock=1200, reasons=64)]
        phases(request(captured, clock, sampler), clock, sampler, states)
        assert told(captured, GPU) == {
            "queue.utilization_percent": 10,
            "queue.memory_percent": 75,
            "queue.clock_mhz": 1980,
            "queue.throttle_reasons": 0,
            "prefill.utilization_percent": 99,
            "prefill.memory_percent": 75,
            "prefill.clock_mhz": 1980,
            "prefill.throttle_reasons": 4,
            "decode.utilization_percent": 60,
            "decode.memory_percent": 75,
            "decode.clock_mhz": 1200,
            "decode.throttle_reasons": 64,
        }

    def test_several_gpus(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """Mean use, fullest memory, slowest clock, all reasons."""
        other = Gpu("GPU-bbbb", used=40, memory=(72 * GB, 80 * GB), clock=900, reasons=32)
        sampler = Stopped(clock, FakeNvml([Gpu(), other]))
        phases(request(captured, clock, sampler), clock, sampler, [Gpu(reasons=4)] * 3)
        found = told(captured, GPU)
        names = ("utilization_percent", "memory_percent", "clock_mhz", "throttle_reasons")
        assert [found[f"decode.{name}"] for name in names] == [60, 90, 900, 36]

    def test_a_sample_that_is_too_old(
        self, captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped
    ) -> None:
        """It says nothing of the phase."""
        sampler.now()
        live = request(captured, clock, sampler)
        live.recorder.mark(Mark.QUEUED)
        clock.advance(1.001)
        live.recorder.mark(Mark.SCHEDULED)
        live.finish()
        assert told(captured, GPU) == {}

    def test_what_a_gpu_does_not_tell(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Each question stands by itself; unknown is absent."""
        silent = Gpu(used=None, memory=None, reasons=None)
        sampler = Stopped(clock, FakeNvml([silent]))
        phases(request(captured, clock, sampler), clock, sampler, [silent] * 3)
        assert {name.partition(".")[2] for name in told(captured, GPU)} == {"clock_mhz"}

    def test_an_idle_gpu_is_not_throttled(
        self, captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped
    ) -> None:
        """NVML counts having nothing to do among its reasons."""
        phases(request(captured, clock, sampler), clock, sampler, [Gpu(reasons=1)] * 3)
        assert told(captured, GPU)["queue.throttle_reasons"] == 0

    def test_not_on_clients(
        self, captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped
    ) -> None:
        """Their GPU answers nobody."""
        watcher = Watcher(HostSettings(gpu=True), clock=clock, gpu=sampler)
        live = watched(captured, clock, watcher).start(CHAT, Side.CLIENT)
        phases(live, clock, sampler, [Gpu()] * 3)
        assert told(captured, GPU) == {}


class TestMetrics:
    """The conventions' names, and ours where they have none."""

    @pytest.fixture(autouse=True)
    def observed(self, captured: CapturedTelemetry, clock: ManualClock, sampler: Stopped) -> None:
        """Metrics of one GPU, which was sampled once."""
        sampler.library.gpus[0].reasons = 4 + 64
        watched(captured, clock, Watcher(HostSettings(gpu=True), clock=clock, gpu=sampler))
        sampler.now()

    @pytest.mark.parametrize(
        ("name", "attributes", "value"),
        [
            ("hw.gpu.utilization", {"hw.gpu.task": "general"}, 0.8),
            ("hw.gpu.memory.usage", {}, 60 * GB),
            ("hw.gpu.memory.limit", {}, 80 * GB),
            ("hw.gpu.memory.utilization", {}, 0.75),
        ],
    )
    def test_one_series_a_gpu(
        self, captured: CapturedTelemetry, name: str, attributes: dict[str, str], value: float
    ) -> None:
        """With what the conventions ask of a GPU."""
        identity = {
            "hw.id": "GPU-aaaa",
            "hw.type": "gpu",
            "hw.name": "GPU 0",
            "hw.model": "NVIDIA H100 80GB HBM3",
            "hw.vendor": "NVIDIA",
        }
        (point,) = captured.points(name)
        assert (dict(point.attributes), point.sum) == ({**identity, **attributes}, value)

    @pytest.mark.parametrize(
        ("metric", "names", "expected"),
        [
            (
                "hw.gpu.io",
                ("otel_llm.gpu.link", "network.io.direction"),
                {
                    ("pcie", "transmit"): 1000,
                    ("pcie", "receive"): 2000,
                    ("nvlink", "transmit"): 3 * 1024,
                    ("nvlink", "receive"): 4 * 1024,
                },
            ),
            (
                "otel_llm.gpu.clock",
                ("otel_llm.gpu.clock.domain",),
                {("sm",): 1_980_000_000, ("memory",): 2_619_000_000},
            ),
            (
                "otel_llm.gpu.throttled",
                ("otel_llm.gpu.throttle.reason",),
                {(name,): int(name in {"sw_power_cap", "hw_thermal"}) for name in REASONS},
            ),
        ],
    )
    def test_several_series(
        self,
        captured: CapturedTelemetry,
        metric: str,
        names: tuple[str, ...],
        expected: dict[tuple[str, ...], float],
    ) -> None:
        """Traffic in bytes, clocks in hertz, one series for each reason."""
        found = captured.points(metric)
        assert expected == {
            tuple(each.attributes[name] for name in names): each.sum for each in found
        }


class TestDevices:
    """Which GPUs are this process's."""

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (None, [0, 1, 2]),
            ("1", [1]),
            ("2,0", [0, 2]),
            ("GPU-bbbb", [1]),
            ("GPU-b", [1]),
            ("", []),
            ("MIG-1234", []),
            ("-1", []),
        ],
    )
    def test_cuda_visible_devices(
        self, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[int]
    ) -> None:
        """By number or by the beginning of a name."""
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        library = FakeNvml([Gpu("GPU-aaaa"), Gpu("GPU-bbbb"), Gpu("GPU-cccc")])
        assert [each.number for each in gpu.devices(library)] == expected


class TestThread:
    """The thread that asks."""

    def test_it_samples_and_ends(self, library: FakeNvml) -> None:
        """One sample at least, and NVML is given back."""
        sampler = GpuSampler(load=lambda: library)
        sampler.start()
        thread = sampler._thread
        assert thread is not None
        while sampler.latest() is None:
            thread.join(0.001)
        sampler.stop()
        assert (thread.is_alive(), library.ended, sampler.latest()) == (False, 1, None)

    @pytest.mark.parametrize("load", [gpu.nvml, lambda: FakeNvml([])], ids=["no driver", "no GPU"])
    def test_nothing_to_look_at(self, load: Any, caplog: pytest.LogCaptureFixture) -> None:
        """The thread ends at once, with one debug line at most."""
        caplog.set_level(logging.DEBUG, "otel_llm")
        sampler = GpuSampler(load=load)
        if load is gpu.nvml and _has_driver():
            pytest.skip("this machine has a GPU")
        sampler.start()
        assert sampler._thread is not None
        sampler._thread.join(10)
        assert not sampler._thread.is_alive()
        assert (sampler.latest(), len(caplog.records)) == (None, int(load is gpu.nvml))

    def test_after_a_fork(self, clock: ManualClock, library: FakeNvml) -> None:
        """Thread and handles are the parent's."""
        sampler = Stopped(clock, library)
        sampler.now()
        sampler.forked()
        assert (sampler._thread, sampler.devices, sampler.latest()) == (None, (), None)


def _has_driver() -> bool:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


class TestRealLibrary:
    """The fake has nothing that the library has not."""

    @pytest.mark.parametrize("name", [each for each in vars(FakeNvml) if each.startswith("nvml")])
    def test_functions(self, name: str) -> None:
        """Same names, and arguments that can be given in the same way."""
        pynvml = pytest.importorskip("pynvml")
        own = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        theirs = inspect.signature(getattr(pynvml, name)).parameters.values()
        needed = [each.name for each in theirs if each.default is inspect.Parameter.empty]
        assert len(own) == len([each for each in needed if each not in {"args", "kwargs"}] or own)

    @pytest.mark.parametrize("name", [each for each in vars(FakeNvml) if each.startswith("NVML_")])
    def test_constants(self, name: str) -> None:
        """Same values."""
        pynvml = pytest.importorskip("pynvml")
        assert getattr(FakeNvml, name) == getattr(pynvml, name)

    @pytest.mark.parametrize(
        ("structure", "fields"),
        [
            ("c_nvmlUtilization_t", {"gpu"}),
            ("c_nvmlMemory_t", {"used", "total"}),
            ("c_nvmlFieldValue_t", {"nvmlReturn", "value"}),
            ("c_nvmlValue_t", {"ullVal"}),
        ],
    )
    def test_structures(self, structure: str, fields: set[str]) -> None:
        """Same fields."""
        pynvml = pytest.importorskip("pynvml")
        assert fields <= {each[0] for each in getattr(pynvml, structure)._fields_}

    @pytest.mark.parametrize(
        ("name", "word"),
        [
            ("SwPowerCap", "sw_power_cap"),
            ("HwSlowdown", "hw_slowdown"),
            ("SyncBoost", "sync_boost"),
            ("SwThermalSlowdown", "sw_thermal"),
            ("HwThermalSlowdown", "hw_thermal"),
            ("HwPowerBrakeSlowdown", "hw_power_brake"),
            ("DisplayClockSetting", "display_clock"),
            ("ApplicationsClocksSetting", "applications_clocks"),
        ],
    )
    def test_reasons(self, name: str, word: str) -> None:
        """Same bits."""
        pynvml = pytest.importorskip("pynvml")
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == REASONS[word]
