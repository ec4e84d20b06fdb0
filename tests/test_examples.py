"""Every example runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters import elsewhere
from tests.adapters.test_text_generation import LIBRARY
from tests.fakes import tgi
from tests.services import vllm, web
from tests.services.process import Service, free_port, listening, poll

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_there_is_a_test_for_each() -> None:
    """A new example needs a test here."""
    names = {"trace_request.py", "fastapi_engine.py", "vllm_server.py"}
    names |= {"huggingface_chat.py", "tgi_generate.py"}
    names |= {"ollama_chat.py", "openai_vllm.py"}  # these and the next in test_examples_clients
    names |= {"httpx_stream.py", "requests_stream.py", "aiohttp_stream.py"}
    assert names == {path.name for path in EXAMPLES.glob("*.py")}


def test_trace_request_prints_a_ledger_that_adds_up() -> None:
    """Shares of all phases and of what is left are the whole."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "trace_request.py"], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines() if "%" in line]
    assert len(rows) == 6
    assert sum(float(row[3].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.5)


def test_fastapi_engine_answers_and_shows_its_spans(tmp_path: Path) -> None:
    """A streamed request over HTTP gives the SERVER span, the request span and its phases."""
    port = free_port()
    command = [sys.executable, EXAMPLES / "fastapi_engine.py", "--port", str(port)]
    with Service(command, log=tmp_path / "log") as server:
        server.wait_ready(listening(port), limit=30)
        body = {"model": "toy", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        answer = web.request(f"http://127.0.0.1:{port}/v1/chat/completions", body)
        assert answer.events()[-1] == "[DONE]"
        shown = poll(server.log.read_text, lambda text: "POST /v1" in text, limit=10)
    assert "outcome=ok" in shown
    assert {"llm.queue", "llm.prefill", "llm.first_token", "llm.decode"} <= set(shown.split())


def test_huggingface_chat_shows_its_phases() -> None:
    """The answer, what is known of the request, and where its time went."""
    with tgi.serving(tgi.chat_stream(gap=0.01)) as server:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "huggingface_chat.py", "--url", server.root],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith("Blue sky")
    assert "chat: ok" in done.stdout
    assert {"llm.first_token", "llm.decode", "llm.delivery"} <= set(done.stdout.split())


@pytest.mark.services
@pytest.mark.timeout(600)
def test_tgi_generate_shows_what_each_way_tells() -> None:
    """The queue of the plain reply, and the first token of the streamed one."""
    python = elsewhere.python_with(LIBRARY)
    with tgi.serving() as server:
        done = subprocess.run(
            [python, EXAMPLES / "tgi_generate.py", "--url", server.root],
            env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
    plain, streamed = done.stdout.splitlines()[-2:]
    assert "queue -" not in plain
    assert "first_token -" in plain
    assert "queue -" in streamed
    assert "first_token -" not in streamed


def test_vllm_server_explains_itself_without_vllm() -> None:
    """`--help` works where vLLM is not installed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "vllm_server.py", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--otlp" in done.stdout


@pytest.mark.services
@pytest.mark.timeout(1200)
def test_vllm_server_serves(tmp_path: Path) -> None:
    """Instrumented in code, vLLM answers; the library is on before its server is built."""
    port = free_port()
    path = vllm.overlay(EXAMPLES.parent, tmp_path / "overlay")
    command = [
        vllm.python(),
        EXAMPLES / "vllm_server.py",
        "--otlp=http://127.0.0.1:9",
        f"--model={vllm.model()}",
        "--served-model-name=tiny",
        "--host=127.0.0.1",
        f"--port={port}",
        "--enforce-eager",
        "--max-model-len=2048",
    ]
    env = {**vllm.ENVIRONMENT, "PYTHONPATH": str(path), "OTEL_METRICS_EXPORTER": "none"}
    with Service(command, log=tmp_path / "log", env=env, cwd=tmp_path) as server:
        server.wait_ready(f"http://127.0.0.1:{port}/health", limit=240)
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        assert web.request(f"http://127.0.0.1:{port}/v1/completions", body).status == 200
        # The exporter tries an address where nobody listens: so there is something to export.
        poll(server.log.read_text, lambda text: "export" in text.lower(), limit=30)
