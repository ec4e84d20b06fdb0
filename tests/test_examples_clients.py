"""The examples of clients run, and print what they are for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import ollama_server, openai_server
from tests.fakes.openai_server import Answer, serving

EXAMPLES = Path(__file__).parents[1] / "examples"
CHAT = openai_server.stream(first=0.02, gap=0.01)
OLLAMA = ollama_server.chat(first=0.1, gap=0.01)


@pytest.fixture(name="run")
def run_fixture(request: pytest.FixtureRequest) -> list[str]:
    """The lines that an example has printed, with a server that answers as the test says."""
    name, answer = request.param
    with serving(answer) as server:
        url = ollama_server.base(server)
        command = [sys.executable, str(EXAMPLES / name), "--url", url, "--model", "tiny"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "traceparent" in server.last.headers
    assert done.stderr == ""
    return done.stdout.splitlines()


def example(name: str, answer: Answer) -> pytest.MarkDecorator:
    """Run this example."""
    return pytest.mark.parametrize("run", [(name, answer)], indirect=True, ids=[""])


def check(lines: list[str], *phases: str) -> None:
    """The answer, these phases in order, and a request that went well."""
    answer = " token" * 5
    assert answer in lines
    shown = [line.split() for line in lines if line != answer]
    assert [f"llm.{phase}" for phase in phases] == [each[0] for each in shown[:-1]]
    assert (shown[-1][0], shown[-1][1], shown[-1][-1]) == ("chat", "tiny", "ok")


@example("ollama_chat.py", OLLAMA)
def test_ollama_chat(run: list[str]) -> None:
    """With the phases that Ollama states."""
    check(run, "load", "queue", "prefill", "decode", "delivery")
    assert any(line.startswith("llm.load") and line.endswith("reported") for line in run)


@example("openai_vllm.py", CHAT)
def test_openai_vllm(run: list[str]) -> None:
    """With what a client sees of a server that states nothing."""
    check(run, "first_token", "decode", "delivery")


@example("httpx_stream.py", CHAT)
def test_httpx_stream(run: list[str]) -> None:
    """The same without a client library."""
    check(run, "first_token", "decode", "delivery")


@example("requests_stream.py", CHAT)
def test_requests_stream(run: list[str]) -> None:
    """The same."""
    check(run, "first_token", "decode", "delivery")


@example("aiohttp_stream.py", CHAT)
def test_aiohttp_stream(run: list[str]) -> None:
    """The same."""
    check(run, "first_token", "decode", "delivery")
