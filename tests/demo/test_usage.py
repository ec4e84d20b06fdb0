"""Wrong usage and what is not installed: told in one line, before anything is left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from otel_llm import cli
from otel_llm.simulator.faults import FAULTS

MESSAGES = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
Demo = Callable[..., tuple[object, str, str]]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Demo]:
    """Runs the command here; returns its exit status, standard output and standard error."""
    before = dict(os.environ)

    def run(*words: str, without: tuple[str, ...] = ()) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["otel-llm", "demo", *words])
        for name in without:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    yield run
    os.environ.clear()
    os.environ.update(before)


def test_faults_are_listed(demo: Demo) -> None:
    """One line each, and the demo does not run."""
    status, out, err = demo("--fault", "list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(FAULTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fault", "gremlins"), "'gremlins' is unknown; there are:\n  long_prompts "),
        (("--requests", "0"), "--requests must be"),
        (("--otlp", "localhost:4318"), "--otlp must be a URL like"),
        (("--engine", "ollama", "--url", "nowhere"), "--url must be a URL like"),
        (("--engine", "abacus"), "abacus"),
    ],
)
def test_wrong_usage(demo: Demo, words: tuple[str, ...], said: str) -> None:
    """Exit status 2, what is wrong, and nothing on standard output."""
    status, out, err = demo(*words)
    assert (status, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    ("without", "package"),
    [
        (("uvicorn",), "uvicorn"),
        (("httpx", "openai"), "httpx"),
        ((MESSAGES,), "opentelemetry-proto"),
    ],
)
def test_a_missing_package_is_told(demo: Demo, without: tuple[str, ...], package: str) -> None:
    """With the command that installs it; of two clients the smaller one is named."""
    status, out, err = demo(without=without)
    assert (status, out) == (1, "")
    assert err == f"otel-llm: {package} is not installed; run: pip install 'otel-llm[demo]'\n"


def test_no_ollama_is_told(demo: Demo) -> None:
    """Exit status 1, and what to do."""
    status, out, err = demo("--engine", "ollama", "--url", "http://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert "no Ollama answers at http://127.0.0.1:1; start it with: ollama serve" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--python", "/nowhere/python"), "/nowhere/python is not a Python that can be run"),
        ((), "has no vLLM; name the interpreter that has it with --python PATH"),
    ],
)
def test_no_vllm_is_told(demo: Demo, words: tuple[str, ...], said: str) -> None:
    """Exit status 1, and what to do."""
    status, out, err = demo("--engine", "vllm", *words)
    assert (status, out) == (1, "")
    assert said in err
