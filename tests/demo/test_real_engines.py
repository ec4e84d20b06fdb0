"""The demo on a real vLLM and on a real Ollama, both with tiny models on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.commands import ROOT, run
from tests.demo.reports import report
from tests.services import vllm
from tests.services.ollama import EMBEDDING_MODEL_NAME, MODEL_NAME, Ollama

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
FEW = ("--requests", "12", "--format", "json")


def test_vllm(tmp_path: Path) -> None:
    """A model made on the spot, the plugin's spans from its server, and a network before it."""
    overlay = vllm.overlay(ROOT, tmp_path / "overlay")
    words = ("--engine", "vllm", "--python", str(vllm.python()), "--fault", "network_delay=0.2")
    done = run(*words, *FEW, limit_s=500, PYTHONPATH=str(overlay))
    assert done.returncode == 0, done.stderr
    found = report(done.stdout)
    assert found["outcomes"]["ok"] == 12, done.stderr
    assert set(found["groups"]["route"]) == {"/v1/chat/completions"}
    assert found["phases"]["queue"]["p50"] is not None
    assert found["phases"]["network"]["p50"] > 0.05


def test_vllm_without_the_plugin_is_told() -> None:
    """Its environment has no otel_llm."""
    done = run("--engine", "vllm", "--python", str(vllm.python()))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"run: {vllm.python()} -m pip install 'otel-llm[vllm]'" in done.stderr


def test_ollama(tmp_path: Path) -> None:
    """Its first model that generates, or the one named, with the times that Ollama tells."""
    with Ollama.start(tmp_path) as ollama:
        here = ("--engine", "ollama", "--url", ollama.url)
        unknown = run(*here, "--model", "nobody")
        done = run(*here, "--requests", "5", "--format", "json")
        named = run(*here, "--requests", "1", "--format", "json", "--model", MODEL_NAME)
    assert unknown.returncode == 1
    assert "run: ollama pull nobody, or use one of: " in unknown.stderr
    assert EMBEDDING_MODEL_NAME not in unknown.stderr
    assert done.returncode == 0, done.stderr
    assert report(done.stdout)["outcomes"]["ok"] == 5
    assert report(done.stdout)["phases"]["load"]["p50"] is not None
    assert set(report(named.stdout)["groups"]["model"]) == {MODEL_NAME}


def test_an_ollama_without_models_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to pull."""
    monkeypatch.setattr("tests.services.ollama.MODEL_NAMES", ())
    with Ollama.start(tmp_path) as ollama:
        done = run("--engine", "ollama", "--url", ollama.url)
    assert done.returncode == 1
    assert "has no model that generates text; pull one: ollama pull" in done.stderr
