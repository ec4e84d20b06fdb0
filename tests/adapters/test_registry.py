"""The engines: one row each, found by name, none imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_llm.adapters.registry import ENGINES, Engine, engine
from otel_llm.errors import UnsupportedEngineError


def test_by_name() -> None:
    """A row is found under its own name."""
    assert [engine(name).name for name in ENGINES] == list(ENGINES)


def test_an_unknown_name() -> None:
    """The message tells what is known."""
    with pytest.raises(UnsupportedEngineError, match=r"engine 'vlm'; known engines: .*, vllm"):
        engine("vlm")


def test_version_of_whichever_distribution_is_installed() -> None:
    """The first one that is there, under its own name."""
    found = Engine("x", "x", ("no-such-distribution", "pytest", "ruff")).installed_version()
    assert pytest.__version__ == found


def test_version_of_nothing() -> None:
    """None, not an error."""
    assert Engine("x", "x", ("no-such-distribution",)).installed_version() is None


def test_adapters_do_not_import_their_engines() -> None:
    """Patching everything that is known loads no engine and no web framework."""
    script = (
        "import sys, otel_llm; otel_llm.instrument(); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'vllm', 'torch', 'fastapi', 'starlette', 'grpc', 'opentelemetry.sdk', 'openai', "
        "'ollama', 'huggingface_hub', 'text_generation', 'httpx', 'requests', 'aiohttp'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
