"""What holds for every test: errors of telemetry are raised, and nothing stays switched on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from otel_llm import config, guard
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry

settings.register_profile("default", max_examples=400, deadline=None)
settings.register_profile("nightly", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("OTEL_LLM_TEST_PROFILE", "default"))


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Strict mode and no other setting in the environment; nothing patched afterwards."""
    for name in os.environ:
        if name.startswith("OTEL_") and not name.startswith("OTEL_LLM_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_LLM_STRICT", "1")
    yield
    config.uninstrument()
    config.RUNTIME.telemetry = None
    guard.failures.clear()


@pytest.fixture
def clock() -> ManualClock:
    """Both clocks, standing still."""
    return ManualClock()


@pytest.fixture
def captured(clock: ManualClock) -> CapturedTelemetry:
    """Telemetry on that clock, kept in memory."""
    return captured_telemetry(clock=clock)
