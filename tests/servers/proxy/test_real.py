"""Real servers behind the proxy: the same answers, and the phases that they state themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.servers.proxy.settings import parse_origin
from otel_llm.testing import CapturedTelemetry
from tests.benchmarks.report import ROOT
from tests.fakes.otlp import Receiver, receiving
from tests.servers.proxy.builders import CHAT, Answered, ask, proxied, request, until
from tests.services import vllm
from tests.services.llama_cpp import LlamaCpp
from tests.services.ollama import MODEL_NAME, Ollama
from tests.services.record import PER_REQUEST_METRICS

# A first run builds what is missing, which takes minutes.
pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me of the sea."}],
    "max_tokens": 24,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
OLLAMA_ASKED = {
    "model": MODEL_NAME,
    "messages": ASKED["messages"],
    "options": {"num_predict": 24, "temperature": 0},
}
VARIES = re.compile(
    rb'"(id|created|created_at|[a-z_]*duration|prompt_eval_cached_count|cache_n|prompt_n'
    rb'|cached_tokens|[a-z_]+_(?:ms|second))": ?[^,}\]]+'
)
"""What is another in each answer."""


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


def lines(answer: Answered) -> list[bytes]:
    """The lines of an answer without what varies."""
    return VARIES.sub(rb"", answer.body).splitlines()


def names(answer: Answered) -> list[bytes]:
    """The names of its headers, in order."""
    hops = {b"connection", b"keep-alive", b"transfer-encoding"}
    return [name.lower() for name, _ in answer.headers if name.lower() not in hops]


async def compared(
    url: str, captured: CapturedTelemetry, path: str, body: Any, **headers: str
) -> Mapping[str, Any]:
    """Ask directly and through the proxy; the same, and the attributes of the request span."""
    sent = request(body, path, **headers)
    address = parse_origin(url).address
    await ask(address, sent, 120)  # loads and warms up
    direct = await ask(address, sent, 120)
    async with proxied(address, captured) as proxy:
        through = await ask(proxy.address, sent, 120)
    assert (direct.status, names(direct), lines(direct)) == (
        through.status,
        names(through),
        lines(through),
    )
    assert through.whole
    (found,) = [each.attributes for each in captured.spans if semconv.SIDE in each.attributes]
    return found or {}


def sources(found: Mapping[str, Any]) -> dict[str, str]:
    """How each phase is known."""
    return dict(each.split("=") for each in found[semconv.SOURCES].split(";"))


async def test_llama_cpp(captured: CapturedTelemetry, llama_url: str) -> None:
    """Prefill is stated; the wait for a slot is what it leaves."""
    found = await compared(llama_url, captured, CHAT, ASKED)
    assert (found[semconv.OUTCOME], found[semconv.ENGINE_NAME]) == ("ok", "llama_cpp")
    assert sources(found)["queue"] == "estimated"
    assert found[semconv.UNACCOUNTED_US] < 1_000


async def test_ollama(captured: CapturedTelemetry, ollama_url: str) -> None:
    """Prefill and decode are stated; the queue is what they leave of the total."""
    found = await compared(ollama_url, captured, "/api/chat", OLLAMA_ASKED, host="127.0.0.1")
    assert (found[semconv.OUTCOME], found[semconv.ENGINE_NAME]) == ("ok", "ollama")
    assert sources(found)["prefill"] in {"reported", "estimated"}
    assert sources(found)["queue"] == "estimated"


def received(receiver: Receiver) -> dict[str, dict[str, int]]:
    """Integers of the server's request spans by trace id."""
    return {
        span.trace_id.hex(): {each.key: each.value.int_value for each in span.attributes}
        for span in receiver.spans
        if any(each.key == semconv.SIDE for each in span.attributes)
    }


async def test_vllm_agrees_with_itself(
    captured: CapturedTelemetry, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Queue and prefill through the proxy are those seen in the engine's process."""
    folder = tmp_path_factory.mktemp("vllm")
    with (
        receiving() as receiver,
        vllm.Vllm.start(
            folder,
            overlay=vllm.overlay(ROOT, folder / "ours"),
            args=[PER_REQUEST_METRICS],
            env=vllm.exporting(receiver.url),
        ) as server,
    ):
        address = parse_origin(server.url).address
        await ask(address, request(ASKED), 120)
        async with proxied(address, captured) as proxy:
            for _ in range(5):
                several = (ask(proxy.address, request(_other(n)), 120) for n in range(4))
                await asyncio.gather(*several)
        mine = {
            f"{each.context.trace_id:032x}": each.attributes
            for each in captured.spans
            if semconv.SIDE in each.attributes
        }
        await until(lambda: mine.keys() <= received(receiver).keys(), 20)
    theirs = received(receiver)
    names = [semconv.phase_us(each) for each in ("queue", "prefill")]
    apart = [
        abs(sum(found[name] - theirs[trace][name] for name in names))
        for trace, found in mine.items()
    ]
    assert len(apart) == 20
    assert {sources(found)["queue"] for found in mine.values()} == {"reported"}
    assert median(apart) < 3_000


def _other(number: int) -> dict[str, Any]:
    text = " ".join(str(n * number) for n in range(40))
    return ASKED | {"messages": [{"role": "user", "content": text}]}
