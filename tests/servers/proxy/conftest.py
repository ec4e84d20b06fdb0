"""What tests of the proxy share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_llm.clients import engines
from otel_llm.testing import CapturedTelemetry, captured_telemetry


@pytest.fixture
def captured() -> CapturedTelemetry:
    """Telemetry on the clocks of this process."""
    return captured_telemetry()


@pytest.fixture(autouse=True)
def _nobody_known() -> Iterator[None]:
    """No engine is remembered from one test to the next."""
    engines.forget()
    yield
    engines.forget()
