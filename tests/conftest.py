"""What holds for every test: errors of telemetry are raised, and nothing stays switched on."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from otel_llm import config, guard
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.services import process

# Where this is set, every server and script would compile what it imports, at each start: for vLLM
# that is half a minute.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("default", max_examples=400, deadline=None)
settings.register_profile("nightly", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("OTEL_LLM_TEST_PROFILE", "default"))


# Each file goes to one worker, in this order; what is not here is short.
_LONGEST = (
    "test_vllm_direct.py",
    "test_vllm_routes.py",
    "test_vllm_older.py",
    "test_clients_beside.py",
    "test_vllm_pressure.py",
    "test_examples.py",
    "test_clients_real.py",
    "test_vllm_jaeger.py",
    "test_vllm_audio.py",
    "test_simulator_scheduler.py",
    "test_real_engines.py",
    "test_services.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker is left with one at the end."""
    order = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="module", autouse=True)
def settled_heap() -> None:
    """What is there already is not looked at by the garbage collector any more.

    It would stand still for 0.4 s at a time, in the middle of tests that read a clock.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the servers have logged."""
    report = yield
    if report.failed:
        for server in (each for each in process.STARTED if each.log.exists()):
            report.sections.append((f"log of {Path(server.command[0]).name}", server.tail()))
    if call.when == "teardown":
        process.STARTED[:] = [server for server in process.STARTED if server.running]
    return report


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
