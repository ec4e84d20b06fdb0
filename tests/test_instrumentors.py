"""The entry points by which `opentelemetry-instrument` finds us."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from otel_llm import instrumentors
from otel_llm.adapters.registry import ENGINES
from otel_llm.config import RUNTIME
from otel_llm.testing import CapturedTelemetry

GROUP = "opentelemetry_instrumentor"
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
POINTS: dict[str, str] = PROJECT["entry-points"][GROUP]


def _loaded(name: str) -> Any:
    return metadata.EntryPoint(name, POINTS[name], GROUP).load()


def test_each_engine_has_one() -> None:
    """Under a key of ours, since keys are shared with everybody."""
    assert {f"otel_llm_{name}" for name in ENGINES} == set(POINTS)


@pytest.mark.parametrize("name", POINTS)
def test_on_and_off(captured: CapturedTelemetry, name: str) -> None:
    """The engine of its key alone, with the providers that it is given."""
    instrumentor = _loaded(name)()
    instrumentor.instrument(skip_dep_check=True, **captured.providers)
    assert [name.removeprefix("otel_llm_")] == list(RUNTIME.patches)
    instrumentor.uninstrument()
    assert RUNTIME.patches == {}


def test_limited_by_the_environment(
    captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out stays off."""
    monkeypatch.setenv("OTEL_LLM_ENGINES", "vllm,ollama")
    for name in POINTS:
        _loaded(name)().instrument(**captured.providers)
    assert {"vllm", "ollama"} == set(RUNTIME.patches)


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"vllm"}))
def test_what_it_requires(name: str) -> None:
    """The same as its extra."""
    extra = PROJECT["optional-dependencies"][name.replace("_", "-")]
    ours, library = extra
    (required,) = _loaded(f"otel_llm_{name}")().instrumentation_dependencies()
    assert ours == "otel-llm[otlp]"
    assert required.replace(" ", "") == library.replace("_hub", "-hub")


def test_the_classes_are_named_in_the_module() -> None:
    """No class is left without an entry point."""
    named = {value.partition(":")[2] for value in POINTS.values()}
    found = {each for each in vars(instrumentors) if each.endswith("Instrumentor")}
    assert found - {"_Instrumentor"} == named
