"""What home-made clients and Ollama's say of time, against the reader's own clock: real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx
import ollama
import pytest
import requests as requests_library

import otel_llm
from otel_llm import config, semconv
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.clients.builders import attributes, requests
from tests.fakes import ollama_server, openai_server
from tests.fakes.openai_server import Answer, serving

PACE = 0.03
Read = Callable[[str, list[float]], Iterator[bool]]


@pytest.fixture(name="captured")
def captured_fixture() -> CapturedTelemetry:
    """Telemetry in memory, and Ollama's client patched."""
    captured = captured_telemetry()
    otel_llm.instrument(engines=["ollama"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return captured


@contextmanager
def traced() -> Iterator[Any]:
    """A request of a client of one's own."""
    with otel_llm.trace_request("chat", model="tiny", provider="me", side="client") as request:
        yield request


def with_httpx(url: str, began: list[float]) -> Iterator[bool]:
    """For each line, whether it brings a piece of the answer; notes when it began."""
    began.append(time.monotonic())
    with traced() as r, httpx.stream("POST", url, json={}) as response:
        for line in r.response(response).iter_lines():
            if line:
                yield " token" in line


def with_requests(url: str, began: list[float]) -> Iterator[bool]:
    """The same, with requests."""
    began.append(time.monotonic())
    with traced() as r, requests_library.post(url, json={}, stream=True, timeout=9) as response:
        for line in r.response(response).iter_lines():
            if line:
                yield b" token" in line


def with_ollama(url: str, began: list[float]) -> Iterator[bool]:
    """The same, with Ollama's client."""
    with ollama.Client(url.removesuffix("/v1")) as client:
        began.append(time.monotonic())
        for part in client.chat("tiny", [], stream=True):
            yield bool(part.message.content)


WAYS: dict[str, tuple[Read, Callable[..., Answer]]] = {
    "httpx": (with_httpx, openai_server.stream),
    "requests": (with_requests, openai_server.stream),
    "ollama": (with_ollama, ollama_server.chat),
}
each_way = pytest.mark.parametrize("way", WAYS)


@each_way
@pytest.mark.parametrize("late", [False, True], ids=["early headers", "late headers"])
def test_ttft(captured: CapturedTelemetry, way: str, late: bool) -> None:
    """Right to the millisecond, whether the time is spent before or after the headers."""
    read, make = WAYS[way]
    answer = make(8, headers_after=0.08) if late else make(8, first=0.08)
    seen, began = [], []
    with serving(answer) as server:
        for _ in range(5):
            times = [time.monotonic() for says in read(server.url, began) if says]
            seen.append(times[0] - began[-1])
    told = [each.attributes[semconv.TTFT_US] / 1e6 for each in requests(captured)]
    assert all(each >= 0.08 for each in told)
    assert median(abs(mine - ours) for mine, ours in zip(seen, told, strict=True)) <= 0.001


@each_way
@pytest.mark.parametrize("busy", [0.0, 0.01, 0.1])
def test_a_busy_reader(captured: CapturedTelemetry, way: str, busy: float) -> None:
    """The reader's time is told apart from the model's."""
    read, make = WAYS[way]
    held = 0.0
    with serving(make(30, first=PACE, gap=PACE)) as server:
        for _ in read(server.url, []):
            began = time.monotonic()
            if busy:
                time.sleep(busy)
                held += time.monotonic() - began
    found = attributes(captured)
    stall = found[semconv.CONSUMER_STALL_US] / 1e6
    assert abs(stall - held) <= (0.05 * held if busy else 0.02)
    if busy <= 0.01:
        assert 27_000 <= found[semconv.CHUNK_GAP_P50_US] <= 33_000
    else:
        absent = {semconv.CHUNK_GAP_P50_US, semconv.CHUNK_GAP_P99_US, semconv.TPOT_US}
        assert not absent & set(found)
        assert "decode=estimated" in found[semconv.SOURCES]
        assert found[semconv.BUFFERED_CHUNKS] >= 20
