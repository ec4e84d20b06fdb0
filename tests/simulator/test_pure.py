"""What the pure parts may import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import Module, modules

PURE = {"hardware", "blocks", "scheduler", "interface", "engine", "truth", "conditions"}
NAMES = {f"otel_llm.simulator.{name}" for name in PURE}
SOURCES = [module for module in modules() if module.name in NAMES]


@pytest.mark.parametrize("module", SOURCES, ids=lambda module: module.name)
def test_a_pure_part_knows_the_standard_library_and_pure_parts(module: Module) -> None:
    """No clock, no event loop, nothing else of the package."""
    names = {name for name, _ in module.imports()}
    ours = {name for name in names if name.split(".")[0] == "otel_llm"}
    assert ours <= NAMES
    assert {name.split(".")[0] for name in names - ours} <= sys.stdlib_module_names
    assert not names & {"asyncio", "time", "datetime", "threading", "socket"}


def test_every_pure_part_is_looked_at() -> None:
    """A renamed file does not get away."""
    assert {module.name for module in SOURCES} == NAMES


def test_importing_the_engine_loads_no_opentelemetry() -> None:
    """A simulation needs Python and nothing else."""
    script = (
        "import sys, otel_llm.simulator; "
        "sys.exit(any(name.startswith(('opentelemetry', 'numpy')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
