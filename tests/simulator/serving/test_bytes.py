"""The simulated servers answer as the recorded real ones, byte for byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from otel_llm.simulator import virtual
from tests.services import record as services
from tests.simulator.serving import asked, record
from tests.simulator.serving.harness import URL, app_of, engine_config
from tests.simulator.serving.masks import headers, masked, one_model

Answer = tuple[int, list[tuple[str, str]], str]
LISTS = {"tags", "ps", "v1_models"}
"""Answers with all models of the recorded server."""
VLLM_OURS = [name for name in asked.VLLM if name != "metrics"]
OLLAMA = [
    "generate", "generate_stream", "generate_unknown", "generate_bad_json", "generate_too_long",
    "chat", "chat_stream", "chat_unknown", "v1_chat", "v1_chat_stream", "v1_chat_unknown",
    "v1_completions", "v1_completions_stream", "ps", "tags", "version", "unload", "load",
]  # fmt: skip


def recorded(folder: Path, name: str) -> tuple[dict[str, Any], Answer]:
    """The request, and what the real server has answered."""
    about = json.loads((folder / f"{name}.json").read_text())
    body = (folder / f"{name}.body").read_bytes()
    body = one_model(body) if name in LISTS else body
    return about["request"], (about["status"], headers(about["headers"]), masked(body))


def ours(dialect: str, request: dict[str, Any], name: str = "", **more: Any) -> Answer:
    """What the simulated server answers."""
    return virtual.run(_ours(dialect, request, name, more))


async def _ours(dialect: str, request: dict[str, Any], name: str, more: dict[str, Any]) -> Answer:
    clock = virtual.VirtualClock(asyncio.get_running_loop())
    app = app_of(dialect, clock, **{"serving": {"stop_share": 0.0}} | more)
    async with (
        virtual.InProcessTransport(app) as transport,
        httpx.AsyncClient(transport=transport, base_url=URL) as client,
    ):
        body = request["body"]
        if body is None:
            reply = await client.get(request["path"])
        else:
            data = body if isinstance(body, str) else json.dumps(body)
            kind = {"content-type": "application/json"}
            reply = await client.post(request["path"], content=data, headers=kind)
        assert transport.errors == []
    content = one_model(reply.content) if name in LISTS else reply.content
    return reply.status_code, headers(reply.headers), masked(content)


def vllm(request: dict[str, Any], **more: Any) -> Answer:
    """What the simulated vLLM answers."""
    return ours("vllm", request, engine=engine_config(max_model_len=4096), **more)


@pytest.mark.parametrize("name", VLLM_OURS)
def test_vllm_answers_as_recorded(name: str) -> None:
    """VLLM's routes, streams and refusals."""
    request, answer = recorded(record.VLLM, name)
    assert answer == vllm(request, prompt_tokens_details=True)


@pytest.mark.parametrize("name", ["chat_stream", "chat_invalid", "completions_n3"])
def test_vllm_answers_as_recorded_without_details(name: str) -> None:
    """VLLM as it is started by default."""
    request, answer = recorded(services.FOLDER, name)
    assert answer == vllm(request)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (services.FOLDER, "chat_metrics"),
        (services.FOLDER, "chat_stream_metrics"),
        *((record.VLLM, name) for name in asked.VLLM_METRICS if "_stop_" not in name),
    ],
)
def test_vllm_tells_its_times_as_recorded(folder: Path, name: str) -> None:
    """`--enable-per-request-metrics`."""
    request, answer = recorded(folder, name)
    assert answer == vllm(request, per_request_metrics=True)


def test_a_model_that_stops_ends_as_recorded() -> None:
    """The token of the end has no text, and its chunk has the reason."""
    request, answer = recorded(record.VLLM, "chat_stream_stop_metrics")
    limited = {**request, "body": request["body"] | {"max_tokens": 5}}
    stops = {"stop_share": 1.0}
    assert answer == vllm(limited, per_request_metrics=True, serving=stops)


@pytest.mark.parametrize("name", asked.VLLM_FULL)
def test_a_full_vllm_answers_as_recorded(name: str) -> None:
    """A request that is not admitted."""
    request, answer = recorded(record.VLLM, name)
    assert answer == vllm(request, serving={"max_open": 0})


def ollama(request: dict[str, Any], name: str, **more: Any) -> Answer:
    """What the simulated Ollama answers; its model is there for what tells of it."""
    engine = engine_config(max_model_len=2048)
    return ours("ollama", request, name, engine=engine, loaded=name == "ps", **more)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *((services.OLLAMA, name) for name in OLLAMA),
        *((record.OLLAMA, name) for name in asked.OLLAMA),
    ],
)
def test_ollama_answers_as_recorded(folder: Path, name: str) -> None:
    """Ollama's own routes, its OpenAI routes, streams and refusals."""
    request, answer = recorded(folder, name)
    assert answer == ollama(request, name)


def test_a_full_ollama_answers_as_recorded() -> None:
    """A request for which there is no room."""
    request, answer = recorded(services.OLLAMA, "generate_overloaded")
    request["body"]["model"] = "tiny"
    assert answer == ollama(request, "", serving={"max_open": 0})


def page(text: str) -> list[str]:
    """The families of a metrics page, and its lines without their values."""
    kept = []
    for line in text.splitlines():
        if line.startswith("# TYPE vllm:"):
            kept.append(line)
        elif line.startswith("vllm:cache_config_info"):
            kept.append("vllm:cache_config_info")
        elif line.startswith("vllm:"):
            kept.append(line.rpartition(" ")[0])
    return kept


def test_the_metrics_page_has_the_recorded_families() -> None:
    """Names, types, labels and buckets, in their order; python's own are left out."""
    request, (status, told, text) = recorded(record.VLLM, "metrics")
    answer = vllm(request)
    assert (status, told) == answer[:2]
    assert page(text) == page(answer[2])
