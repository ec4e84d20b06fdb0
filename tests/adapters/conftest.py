"""A patched engine on the clock of the test."""

from __future__ import annotations

import pytest

import otel_llm
from otel_llm import config
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.fakes import vllm
from tests.fakes.vllm import AsyncLLM


@pytest.fixture
def engine_type(monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry) -> type[AsyncLLM]:
    """The engine's class, patched."""
    fresh = vllm.installed(monkeypatch)
    instrument(captured)
    return fresh


@pytest.fixture
def engine(engine_type: type[AsyncLLM], clock: ManualClock) -> AsyncLLM:
    """An engine with the plan of `Plan`."""
    return engine_type(clock)


@pytest.fixture
def bare_engine(
    monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock
) -> AsyncLLM:
    """One of a vLLM without the functions that it does not document."""
    fresh = vllm.installed(monkeypatch, private=False)
    instrument(captured)
    return fresh(clock)


def instrument(captured: CapturedTelemetry) -> None:
    """Patch what is installed; its telemetry is on the clock of the test."""
    otel_llm.instrument(**captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
