"""The oldest client of Ollama's that we support: against a fake, and against a real Ollama."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_llm import semconv
from tests.conformance.client_environments import interpreter
from tests.conformance.test_clients_real import check, ollama_phases
from tests.fakes import ollama_server
from tests.fakes.openai_server import OpenAIServer, failing, serving, whole
from tests.services.ollama import Ollama

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
FIRST_US = 50_000
OUTCOMES = {
    "whole": "ok",
    "streamed": "ok",
    "async_whole": "ok",
    "async_streamed": "ok",
    "generated": "ok",
    "embedded": "ok",
    "left": "abandoned",
    "never_read": "abandoned",
    "failed": "rejected",
}
PACED = ollama_server.chat(first=FIRST_US / 1e6)
ANSWERS = [
    ollama_server.whole(),
    PACED,
    ollama_server.whole(),
    PACED,
    ollama_server.generated(" a", " b"),
    whole({"model": "tiny-embed", "embeddings": [[0.5], [0.5]], **ollama_server.EMBEDDED}),
    ollama_server.hanging(),
    failing(404),
]
CHATS = ["whole", "streamed", "async_whole", "async_streamed"]


@pytest.fixture(scope="module", params=["ollama-0.4.0"])
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter that has an older client."""
    return interpreter(request.param)


@pytest.fixture(scope="module")
def faked(python: Path) -> Iterator[tuple[OpenAIServer, dict[str, Any]]]:
    """What came of each call to a fake, and the fake."""
    with serving(*ANSWERS) as server:
        yield server, _calls(python, ollama_server.base(server))


@pytest.fixture(scope="module")
def real(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each call to a real Ollama."""
    with Ollama.start(tmp_path_factory.mktemp("ollama")) as server:
        return _calls(python, server.url)


def _calls(python: Path, url: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", "tests.conformance.ollama_child", url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OTEL_LLM_STRICT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def outcomes(calls: dict[str, Any]) -> dict[str, str]:
    """How each call ended."""
    return {name: call["attributes"][semconv.OUTCOME] for name, call in calls.items()}


def test_outcomes(faked: tuple[OpenAIServer, dict[str, Any]]) -> None:
    """Every way through the client, and every way to leave it."""
    assert outcomes(faked[1]) == OUTCOMES


def test_what_is_sent(faked: tuple[OpenAIServer, dict[str, Any]]) -> None:
    """One `traceparent` with each request; a stream that nobody reads sends none."""
    asked = faked[0].asked
    assert len(asked) == len(OUTCOMES) - 1
    assert [len(each.headers["traceparent"]) for each in asked] == [1] * len(asked)


def test_facts(faked: tuple[OpenAIServer, dict[str, Any]]) -> None:
    """Tokens of every chat, and when the first came of those that are streamed."""
    for name in CHATS:
        found = faked[1][name]["attributes"]
        assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (7, 5)
    for name in ("streamed", "async_streamed"):
        assert faked[1][name]["attributes"][semconv.TTFT_US] >= FIRST_US


def test_outcomes_of_a_real_one(real: dict[str, Any]) -> None:
    """The same."""
    assert outcomes(real) == OUTCOMES


@pytest.mark.parametrize("name", [*CHATS, "generated"])
def test_phases_of_a_real_one(real: dict[str, Any], name: str) -> None:
    """Load, prefill and decode are what it says itself, and all add up."""
    found, said = real[name]["attributes"], real[name]["said"]
    check(found, ollama_phases(said))
    assert found[semconv.INPUT_TOKENS] == said["prompt_eval_count"]
    assert found[semconv.OUTPUT_TOKENS] == said["eval_count"]


def test_embeddings_of_a_real_one(real: dict[str, Any]) -> None:
    """Tokens of the input, and no first one of an output."""
    found = real["embedded"]["attributes"]
    assert found[semconv.INPUT_TOKENS] > 0
    assert semconv.TTFT_US not in found
