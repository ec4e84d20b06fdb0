"""What importing the package brings along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp", "aiokafka", "confluent_kafka", "fastapi", "google", "grpc", "httpx", "kafka",
    "ollama", "openai", "pydantic", "requests", "sqlite3", "starlette", "torch", "transformers",
    "uvicorn", "vllm", "yaml",
}  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """Top-level names and SDK modules that *statement* loads in a fresh interpreter."""
    script = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import otel_llm",
        "from otel_llm import instrument, trace_request, configure; instrument()",
        "from otel_llm.instrumentors import vllm_plugin; vllm_plugin()",
    ],
)
def test_no_engine_and_no_web_library_is_loaded(statement: str) -> None:
    """Importing and instrumenting load no engine, grpc, kafka or web library, and no SDK."""
    names = loaded_by(statement)
    assert set() == {name.split(".")[0] for name in names} & HEAVY
    assert set() == {name for name in names if name.startswith("opentelemetry.sdk")}


def test_the_bare_import_loads_nothing_but_itself() -> None:
    """`import otel_llm` alone does not even load the OpenTelemetry API."""
    names = loaded_by("import otel_llm")
    assert set() == {name for name in names if name.startswith(("opentelemetry", "wrapt"))}
