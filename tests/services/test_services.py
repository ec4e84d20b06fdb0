"""Tests that start each real server and use it as other tests do."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import llama_cpp, ollama, otelcol, record, recorded, samples, vllm, web
from tests.services.jaeger import Jaeger
from tests.services.llama_cpp import LlamaCpp
from tests.services.ollama import Ollama
from tests.services.otelcol import Collector
from tests.services.otlp_json import Span
from tests.services.process import ServiceError
from tests.services.vllm import Vllm

# A first run builds what is missing, which takes minutes.
pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

SLOW = {
    "tail_sampling": {
        # Longer than any test: stopping the Collector decides all traces at once.
        "decision_wait": "60s",
        "policies": [{"name": "slow", "type": "latency", "latency": {"threshold_ms": 100}}],
    }
}


def _send(url: str, trace_id: str, milliseconds: int, service: str = "sample") -> None:
    """Send a sample trace as OTLP JSON over HTTP."""
    answer = web.request(f"{url}/v1/traces", samples.trace(trace_id, milliseconds, service))
    assert answer.status == 200, answer.body


def _check_sample(spans: list[Span], trace_id: str, service: str) -> None:
    """Check that nothing of a sample trace was lost on its way."""
    root, child = sorted(spans, key=lambda span: span["span_id"])
    assert {span["trace_id"] for span in spans} == {trace_id}
    assert child["parent_span_id"] == root["span_id"]
    assert (root["name"], root["kind"], child["kind"]) == ("root", 2, 1)
    assert (root["status_code"], root["status_message"]) == (2, "too long")
    assert root["end_ns"] - root["start_ns"] == 500_000_000
    assert root["attributes"] == {
        "text": "",
        "count": 9007199254740993,
        "flag": False,
        "ratio": 0.25,
        "reasons": ["stop"],
    }
    assert [(event["name"], event["time_ns"]) for event in root["events"]] == [
        ("first token", root["start_ns"] + 5)
    ]
    assert [link["span_id"] for link in root["links"]] == ["2" * 16]
    assert (root["scope"], root["scope_version"]) == ("sample scope", "1.2")
    assert root["resource"] == {"service.name": service}


def test_jaeger_gives_back_what_it_got(tmp_path: Path) -> None:
    """Spans sent over OTLP/HTTP are read back whole."""
    sent, unknown = samples.trace_id(), samples.trace_id()
    with Jaeger.start(tmp_path) as jaeger:
        _send(jaeger.otlp_http, sent, 500, "to jaeger")
        _check_sample(jaeger.wait_for(sent, lambda spans: len(spans) == 2), sent, "to jaeger")
        assert jaeger.services() == ["to jaeger"]
        assert jaeger.traces(unknown) == []
        with pytest.raises(TimeoutError):
            jaeger.wait_for(unknown, timeout=0.1)
        assert jaeger.stop() == 0


@pytest.mark.parametrize("gates", [[], ["processor.tailsamplingprocessor.recordpolicy"]])
def test_collector_keeps_slow_traces(tmp_path: Path, gates: list[str]) -> None:
    """A latency policy keeps the slow trace, and a feature gate names the policy on it."""
    slow, fast = samples.trace_id(), samples.trace_id()
    config = otelcol.base_config(tmp_path, SLOW)
    with Collector.start(tmp_path, config, feature_gates=gates) as collector:
        _send(collector.otlp_http, slow, 500)
        _send(collector.otlp_http, fast, 5)
        assert collector.stop() == 0
        kept = collector.kept()
    policies = {str(value) for span in kept for value in span["scope_attributes"].values()}
    assert policies == ({"slow"} if gates else set())
    _check_sample(kept, slow, "sample")


def test_collector_writes_while_it_runs(tmp_path: Path) -> None:
    """Without a sampler, spans reach the file without a stop."""
    sent = samples.trace_id()
    with Collector.start(tmp_path, otelcol.base_config(tmp_path)) as collector:
        _send(collector.otlp_http, sent, 500)
        _check_sample(collector.wait_kept(lambda spans: len(spans) == 2), sent, "sample")


def test_collector_refuses_bad_settings(tmp_path: Path) -> None:
    """Unknown settings fail validation and the start, and the reason is shown."""
    assert otelcol.validate(tmp_path, otelcol.base_config(tmp_path, SLOW)) == ""
    bad = otelcol.base_config(tmp_path, {"tail_sampling": {"decision_weight": "1s"}})
    assert "decision_weight" in otelcol.validate(tmp_path, bad)
    with pytest.raises(ServiceError, match="decision_weight"):
        Collector.start(tmp_path, bad)


PLUGIN = """
    import os

    def register():
        with open(os.environ["PLUGIN_FILE"], "a") as file:
            print(os.getpid(), file=file)
"""

PLUGIN_PROJECT = """
    [project]
    name = "sample-plugin"
    version = "1"
    [project.entry-points."vllm.general_plugins"]
    sample = "sample_plugin:register"
    [build-system]
    requires = ["setuptools"]
    build-backend = "setuptools.build_meta"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """Start a vLLM server with an overlay that holds a plugin."""
    workdir = tmp_path_factory.mktemp("vllm")
    project = workdir / "project"
    project.mkdir()
    (project / "sample_plugin.py").write_text(textwrap.dedent(PLUGIN))
    (project / "pyproject.toml").write_text(textwrap.dedent(PLUGIN_PROJECT))
    with Vllm.start(
        workdir,
        args=[record.PER_REQUEST_METRICS],
        env={"PLUGIN_FILE": str(workdir / "plugin.txt")},
        overlay=vllm.overlay(project, workdir / "overlay"),
    ) as running:
        yield running


def _ask(server: Vllm, path: str, body: dict[str, Any]) -> web.Response:
    """Send a request that must succeed."""
    answer = web.request(server.url + path, {"model": vllm.MODEL_NAME} | body)
    assert answer.status == 200, answer.body
    return answer


CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def test_vllm_chats(server: Vllm) -> None:
    """A chat completion has a usage and, as asked for, metrics."""
    answer = _ask(server, "/v1/chat/completions", CHAT).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["metrics"]["time_to_first_token_ms"] > 0


def test_vllm_streams_a_chat(server: Vllm) -> None:
    """A streamed chat ends with the end mark."""
    answer = _ask(server, "/v1/chat/completions", CHAT | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.events()[-1] == "[DONE]"


def test_vllm_completes(server: Vllm) -> None:
    """One prompt can be completed several times, and as long as a test needs."""
    answer = _ask(server, "/v1/completions", {"prompt": "a", "n": 3, "max_tokens": 5}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    assert _ask(server, "/v1/completions", body).json()["usage"]["completion_tokens"] == 200


def test_vllm_responds(server: Vllm) -> None:
    """The Responses API answers, streamed and not."""
    body = {"input": "hello", "max_output_tokens": 5}
    assert _ask(server, "/v1/responses", body).json()["usage"]["output_tokens"] == 5
    last = _ask(server, "/v1/responses", body | {"stream": True}).events()[-1]
    assert '"response.incomplete"' in last or '"response.completed"' in last


def test_vllm_reports(server: Vllm) -> None:
    """Errors are answers, metrics can be read, and the log and the process are at hand."""
    body = {"model": vllm.MODEL_NAME} | CHAT | {"max_tokens": -1}
    assert web.request(f"{server.url}/v1/chat/completions", body).status == 400
    assert "vllm:request_success_total" in server.metrics_text()
    assert f"pid={server.pid}" in server.log.read_text()


def test_vllm_loads_plugins_from_the_overlay(server: Vllm) -> None:
    """An entry point in the overlay runs in the server and in its engine process."""
    pids = (server.log.parent / "plugin.txt").read_text().split()
    assert str(server.pid) in pids
    assert len(set(pids)) > 1


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """Start a llama.cpp server."""
    with LlamaCpp.start(tmp_path_factory.mktemp("llama")) as running:
        yield running


def test_llama_cpp_tells_its_timings(llama: LlamaCpp) -> None:
    """A chat has as many tokens as were asked for, and its timings say so."""
    answer = web.request(f"{llama.url}/v1/chat/completions", CHAT).json()
    assert answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"] == 5
    assert answer["timings"]["predicted_ms"] > 0


def test_llama_cpp_streams_a_token_at_a_time(llama: LlamaCpp) -> None:
    """A native stream has one event for each token, and the last one says why it ended."""
    body = {"prompt": "a", "n_predict": 50, "temperature": 0, "stream": True}
    events = [json.loads(text) for text in web.request(f"{llama.url}/completion", body).events()]
    assert len([event for event in events if event["tokens"]]) == 50
    assert events[-1]["stop_type"] == "limit"


def test_llama_cpp_calls_a_tool(tmp_path: Path) -> None:
    """One model answers with a call of the tool that it is given, and ends by itself."""
    path, body = recorded.LLAMA_CPP_TOOLS["chat_tools"]
    with LlamaCpp.start(tmp_path, model_name=llama_cpp.TOOL_MODEL_NAME) as server:
        choice = web.request(server.url + path, body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("clock", {"zone": "UTC"})


def test_llama_cpp_has_metrics_and_two_slots(llama: LlamaCpp) -> None:
    """What waits can be read, and two requests need not."""
    assert "llamacpp:requests_deferred 0" in llama.metrics_text()
    assert len(web.request(f"{llama.url}/slots").json()) == llama_cpp.SLOTS


@pytest.fixture(scope="module")
def ollama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ollama]:
    """Start an Ollama."""
    with Ollama.start(tmp_path_factory.mktemp("ollama")) as running:
        yield running


def _lines(server: Ollama, name: str) -> list[dict[str, Any]]:
    """Send a request whose answer is recorded, too, and return the lines of this answer."""
    path, body = recorded.OLLAMA[name]
    answer = web.request(server.url + path, body)
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


@pytest.mark.parametrize("name", ["generate", "generate_stream", "chat", "chat_stream"])
def test_ollama_tells_its_durations(ollama_server: Ollama, name: str) -> None:
    """The last object of each native answer has the counts, and durations in nanoseconds."""
    last = _lines(ollama_server, name)[-1]
    assert (last["done_reason"], last["eval_count"]) == ("length", 5)
    parts = [last[f"{part}_duration"] for part in ("load", "prompt_eval", "eval")]
    assert all(parts)
    assert sum(parts) <= last["total_duration"]


def test_ollama_thinks(ollama_server: Ollama) -> None:
    """One model streams thoughts and no answer."""
    lines = _lines(ollama_server, "chat_thinking_stream")
    assert any(line["message"].get("thinking") for line in lines)
    assert not any(line["message"]["content"] for line in lines)


def test_ollama_calls_a_tool(ollama_server: Ollama) -> None:
    """One model answers with a call of the tool that it is given."""
    lines = _lines(ollama_server, "chat_tools_stream")
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in calls] == [{"zone": "UTC"}]
    assert lines[-1]["done_reason"] == "stop"


def test_ollama_embeds(ollama_server: Ollama) -> None:
    """Each text has a vector."""
    [answer] = _lines(ollama_server, "embed")
    assert len(answer["embeddings"]) == 2


def test_ollama_lists_what_is_loaded(tmp_path: Path) -> None:
    """A model is loaded by the first request for it."""
    with Ollama.start(tmp_path) as server:
        assert web.request(f"{server.url}/api/ps").json() == {"models": []}
        _lines(server, "load")
        [loaded] = web.request(f"{server.url}/api/ps").json()["models"]
        assert loaded["name"] == f"{ollama.MODEL_NAME}:latest"
