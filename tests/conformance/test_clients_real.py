"""Clients of real servers: what we say of the phases is what the servers say themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest

import otel_llm
from otel_llm import config, semconv
from otel_llm.clients import engines
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from otel_llm.timeline.window import TOLERANCE_US
from tests.clients.builders import requests
from tests.services.llama_cpp import LlamaCpp
from tests.services.ollama import MODEL_NAME, THINKING_MODEL_NAME, Ollama
from tests.services.vllm import Vllm

# A first run builds what is missing, which takes minutes.
pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me of the sea."}],
    "max_tokens": 24,
}
STREAMED = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
PHASES = (
    "retry", "preprocess", "load", "queue", "prefill", "first_token", "decode", "delivery",
    "unaccounted",
)  # fmt: skip


@pytest.fixture(name="captured")
def captured_fixture() -> Iterator[CapturedTelemetry]:
    """Telemetry in memory; no engine is known yet."""
    engines.forget()
    captured = captured_telemetry()
    otel_llm.instrument(engines=["openai", "ollama"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    yield captured
    engines.forget()


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM that states the metrics of each request."""
    folder = tmp_path_factory.mktemp("vllm")
    with Vllm.start(folder, args=["--enable-per-request-metrics"]) as server:
        yield server.url


@pytest.fixture(scope="module")
def llama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A llama.cpp server."""
    with LlamaCpp.start(tmp_path_factory.mktemp("llama")) as server:
        yield server.url


@pytest.fixture(scope="module")
def ollama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Ollama."""
    with Ollama.start(tmp_path_factory.mktemp("ollama")) as server:
        yield server.url


def chat(url: str, **body: Any) -> list[Any]:
    """The reply, or the chunks, of one chat through the OpenAI client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(**body)
        return list(reply) if body.get("stream") else [reply]


def stated(items: list[Any], name: str) -> dict[str, Any]:
    """The last object of this name that a server put into its reply."""
    found: dict[str, Any] = [each[name] for each in dumped(items) if each.get(name)][-1]
    return found


def dumped(items: list[Any]) -> list[dict[str, Any]]:
    """Objects of a client library as JSON."""
    return [each if isinstance(each, dict) else each.model_dump() for each in items]


def last(captured: CapturedTelemetry) -> Any:
    """What is on the newest request span."""
    return requests(captured)[-1].attributes


def check(found: Any, expected_us: dict[str, float]) -> None:
    """Each phase is as long as stated, or shorter and says so; and all add up.

    Shorter by up to the tolerance needs no word: a first token is a while on its way.
    """
    for phase, us in expected_us.items():
        length, said = found[semconv.phase_us(phase)], found.get(semconv.reported_us(phase))
        if said is None:
            assert -TOLERANCE_US - 1.01 <= length - us <= 1.01, phase
            assert f"{phase}=reported" in found[semconv.SOURCES]
        else:
            assert said == pytest.approx(us, abs=1.01), phase
            assert length < said
            assert f"{phase}=estimated" in found[semconv.SOURCES]
    e2e = found[semconv.E2E_US]
    assert sum(found.get(semconv.phase_us(phase), 0) for phase in PHASES) == e2e
    assert sum(found[semconv.phase_us(phase)] for phase in expected_us) <= e2e
    assert found[semconv.OUTCOME] == "ok"


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
def test_vllm(captured: CapturedTelemetry, vllm_url: str, body: dict[str, Any]) -> None:
    """Queue, prefill and decode of its `metrics`."""
    said = stated(chat(vllm_url, **body), "metrics")
    expected = {
        "queue": said["queue_time_ms"] * 1e3,
        "prefill": said["time_to_first_token_ms"] * 1e3,
        "decode": said["generation_time_ms"] * 1e3,
    }
    check(last(captured), expected)


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
def test_llama_cpp(captured: CapturedTelemetry, llama_url: str, body: dict[str, Any]) -> None:
    """Prefill and decode of its `timings`."""
    said = stated(chat(llama_url, **body), "timings")
    check(
        last(captured), {"prefill": said["prompt_ms"] * 1e3, "decode": said["predicted_ms"] * 1e3}
    )


def test_llama_cpp_natively(captured: CapturedTelemetry, llama_url: str) -> None:
    """Its own route, through a client of one's own."""
    items = []
    given = {"prompt": "The sea", "n_predict": 16, "stream": True}
    with (
        otel_llm.trace_request("text_completion", model="tiny", provider="me", side="client") as r,
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{llama_url}/completion", json=given, headers=r.headers()) as reply,
    ):
        for line in r.response(reply).iter_lines():
            items += [json.loads(line.removeprefix("data: "))] if line else []
    said = stated(items, "timings")
    check(
        last(captured), {"prefill": said["prompt_ms"] * 1e3, "decode": said["predicted_ms"] * 1e3}
    )
    assert last(captured)[semconv.OUTPUT_TOKENS] == said["predicted_n"]
    assert last(captured)[semconv.ENGINE_NAME] == "llama_cpp"


def ollama_phases(said: dict[str, Any]) -> dict[str, float]:
    """The durations of Ollama's last line in microseconds, and what they leave of the total."""
    names = {
        "load": "load_duration",
        "prefill": "prompt_eval_duration",
        "decode": "eval_duration",
    }
    return {phase: said[name] / 1e3 for phase, name in names.items()}


@pytest.mark.parametrize("model", [MODEL_NAME, THINKING_MODEL_NAME])
@pytest.mark.parametrize("streamed", [False, True])
def test_ollama(captured: CapturedTelemetry, ollama_url: str, model: str, streamed: bool) -> None:
    """Load, prefill and decode of its durations; the queue is the rest."""
    with ollama.Client(ollama_url) as client:
        reply: Any = client.chat(
            model, CHAT["messages"], stream=streamed, options={"num_predict": 24}
        )
        items = list(reply) if streamed else [reply]
    said = dumped(items)[-1]
    found, expected = last(captured), ollama_phases(said)
    check(found, expected)
    rest = max(0.0, said["total_duration"] / 1e3 - sum(expected.values()))
    assert found[semconv.phase_us("queue")] <= rest + 3
    assert "queue=estimated" in found[semconv.SOURCES]
    assert found[semconv.INPUT_TOKENS] == said["prompt_eval_count"]
    assert found[semconv.OUTPUT_TOKENS] == said["eval_count"]


async def test_ollama_asynchronous(captured: CapturedTelemetry, ollama_url: str) -> None:
    """The same, asynchronous, with an answer to a prompt."""
    async with ollama.AsyncClient(ollama_url) as client:
        short = {"num_predict": 24}
        stream: Any = await client.generate("tiny", "The sea", stream=True, options=short)
        items = [each async for each in stream]
    check(last(captured), ollama_phases(dumped(items)[-1]))


def test_ollama_embeds(captured: CapturedTelemetry, ollama_url: str) -> None:
    """Embeddings."""
    with ollama.Client(ollama_url) as client:
        said = client.embed("tiny-embed", ["the sea", "the sky"])
    found = last(captured)
    assert found[semconv.INPUT_TOKENS] == said.prompt_eval_count
    assert found[semconv.OUTCOME] == "ok"
    assert semconv.TTFT_US not in found


def test_ollama_without_the_model(captured: CapturedTelemetry, ollama_url: str) -> None:
    """Refused."""
    with ollama.Client(ollama_url) as client, pytest.raises(ollama.ResponseError):
        list(client.generate("nothing", "x", stream=True))
    assert (last(captured)[semconv.OUTCOME], last(captured)[semconv.ERROR_TYPE]) == (
        "rejected",
        "404",
    )


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp", "ollama"])
def test_the_engine_is_remembered(
    captured: CapturedTelemetry, engine: str, request: pytest.FixtureRequest
) -> None:
    """The second call through the OpenAI client knows who answers there."""
    url = request.getfixturevalue({"llama_cpp": "llama_url"}.get(engine, f"{engine}_url"))
    chat(url, **CHAT)
    chat(url, **STREAMED)
    providers = [each.attributes[semconv.PROVIDER] for each in requests(captured)]
    assert providers == ["openai", engine]
    assert last(captured)[semconv.ENGINE_NAME] == engine
