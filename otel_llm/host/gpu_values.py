"""GPU samples as attributes of a request span, and as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.host.gpu import Device, GpuSampler, GpuState
from otel_llm.timeline import Phase, Timeline

PHASES = (Phase.QUEUE, Phase.PREFILL, Phase.DECODE)
REASONS = {
    "applications_clocks": 2,
    "sw_power_cap": 4,
    "hw_slowdown": 8,
    "sync_boost": 16,
    "sw_thermal": 32,
    "hw_thermal": 64,
    "hw_power_brake": 128,
    "display_clock": 256,
}
"""NVML's bits for why clocks are lower than they could be."""
_TYPE, _VENDOR = "gpu", "NVIDIA"
Series = Callable[[GpuState], Iterable[tuple[float | None, Mapping[str, str]]]]


def values(sampler: GpuSampler, timeline: Timeline, anchor: Anchor) -> dict[str, int]:
    """What the GPUs did at the end of queue, prefill and decode: the last sample in each phase.

    A sample that is up to a second older than the phase's end counts, for NVML's figures are means
    of about that. Over several GPUs: mean use, fullest memory, slowest clock, all reasons.
    """
    found: dict[str, int] = {}
    for phase, start_us, duration_us, _, _ in timeline.phases:
        if phase in PHASES:
            end_ns = anchor.monotonic((start_us + duration_us) * 1000)
            sample = sampler.before(end_ns)
            for what, value in _over(sample.states) if sample is not None else ():
                found[semconv.gpu_in(phase.value, what)] = value
    return found


def _over(states: tuple[GpuState, ...]) -> Iterable[tuple[str, int]]:
    used = [each.utilization_percent for each in states if each.utilization_percent is not None]
    if used:
        yield "utilization_percent", round(fmean(used))
    full = [share for each in states if (share := _memory_share(each)) is not None]
    if full:
        yield "memory_percent", round(100 * max(full))
    clocks = [each.clock_mhz for each in states if each.clock_mhz is not None]
    if clocks:
        yield "clock_mhz", min(clocks)
    reasons = [each.throttle_reasons for each in states if each.throttle_reasons is not None]
    if reasons:
        total = 0
        for each in reasons:
            total |= each
        yield "throttle_reasons", total


def _memory_share(state: GpuState) -> float | None:
    if state.memory_used is None or not state.memory_total:
        return None
    return state.memory_used / state.memory_total


def observe(sampler: GpuSampler, meter: Meter) -> None:
    """Create the metrics; each shows the latest sample of every GPU."""
    for make, name, unit, series in (
        (meter.create_observable_gauge, semconv.HW_GPU_UTILIZATION, semconv.RATIO, _utilization),
        (
            meter.create_observable_up_down_counter,
            semconv.HW_GPU_MEMORY_USAGE,
            semconv.BYTES,
            lambda state: [(state.memory_used, {})],
        ),
        (
            meter.create_observable_up_down_counter,
            semconv.HW_GPU_MEMORY_LIMIT,
            semconv.BYTES,
            lambda state: [(state.memory_total, {})],
        ),
        (
            meter.create_observable_gauge,
            semconv.HW_GPU_MEMORY_UTILIZATION,
            semconv.RATIO,
            lambda state: [(_memory_share(state), {})],
        ),
        (meter.create_observable_counter, semconv.HW_GPU_IO, semconv.BYTES, _traffic),
        (meter.create_observable_gauge, semconv.GPU_CLOCK, semconv.HERTZ, _clocks),
        (meter.create_observable_gauge, semconv.GPU_THROTTLED, semconv.RATIO, _throttled),
    ):
        make(name, [_callback(sampler, series)], unit=unit)


def _callback(
    sampler: GpuSampler, series: Series
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observed(_options: CallbackOptions) -> Iterable[Observation]:
        sample = sampler.latest()
        if sample is None:
            return
        for device, state in zip(sampler.devices, sample.states, strict=False):
            for value, attributes in series(state):
                if value is not None:
                    yield Observation(value, {**_identity(device), **attributes})

    return observed


def _identity(device: Device) -> dict[str, str]:
    return {
        semconv.HW_ID: device.uuid,
        semconv.HW_TYPE: _TYPE,
        semconv.HW_NAME: f"GPU {device.number}",
        semconv.HW_MODEL: device.model,
        semconv.HW_VENDOR: _VENDOR,
    }


def _utilization(state: GpuState) -> Iterable[tuple[float | None, Mapping[str, str]]]:
    used = state.utilization_percent
    yield None if used is None else used / 100, {semconv.HW_GPU_TASK: "general"}


def _traffic(state: GpuState) -> Iterable[tuple[float | None, Mapping[str, str]]]:
    for link, direction, value in (
        ("pcie", "transmit", state.pcie_sent),
        ("pcie", "receive", state.pcie_received),
        ("nvlink", "transmit", state.nvlink_sent),
        ("nvlink", "receive", state.nvlink_received),
    ):
        yield value, {semconv.NETWORK_IO_DIRECTION: direction, semconv.GPU_LINK: link}


def _clocks(state: GpuState) -> Iterable[tuple[float | None, Mapping[str, str]]]:
    for domain, mhz in (("sm", state.clock_mhz), ("memory", state.memory_clock_mhz)):
        yield None if mhz is None else mhz * 1_000_000, {semconv.GPU_DOMAIN: domain}


def _throttled(state: GpuState) -> Iterable[tuple[float | None, Mapping[str, str]]]:
    if state.throttle_reasons is not None:
        for reason, bit in REASONS.items():
            yield int(bool(state.throttle_reasons & bit)), {semconv.GPU_REASON: reason}
