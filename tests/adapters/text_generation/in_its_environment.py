"""Tests that need `text_generation`, and so an old huggingface_hub: run in an environment of theirs.

`tests/adapters/test_text_generation.py` does it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import trace
from text_generation import AsyncClient, Client
from text_generation import client as module
from text_generation.errors import OverloadedError, ValidationError
from text_generation.types import Message

import otel_llm
from otel_llm import config, semconv
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer

MESSAGES = [Message(role="user", content="secret")]


@pytest.fixture
def captured() -> Iterator[CapturedTelemetry]:
    """Telemetry in memory, and the library patched."""
    made = captured_telemetry()
    config.RUNTIME.telemetry = made.telemetry
    otel_llm.instrument(engines=["text_generation"])
    yield made


@pytest.fixture
def server() -> Iterator[TgiServer]:
    """A server that answers as TGI does."""
    with tgi.serving() as running:
        yield running


@pytest.fixture
def client(server: TgiServer) -> Client:
    """A client of it."""
    return Client(server.root)


@pytest.fixture
def aclient(server: TgiServer) -> AsyncClient:
    """As `client`, for asynchronous applications."""
    return AsyncClient(server.root)


def request(captured: CapturedTelemetry) -> Any:
    """What is on the one request span; no word of what was asked is on it."""
    (span,) = [each for each in captured.spans if semconv.SIDE in (each.attributes or {})]
    assert "secret" not in f"{span.attributes} {span.status.description} {span.events}"
    return span.attributes


def outcome(captured: CapturedTelemetry) -> tuple[Any, Any]:
    """How the one request ended, and why."""
    found = request(captured)
    return found[semconv.OUTCOME], found.get(semconv.ERROR_TYPE)


def traced(server: TgiServer, captured: CapturedTelemetry) -> bool:
    """Whether the last request carries the request span, and carries it once."""
    (span,) = [each for each in captured.spans if semconv.SIDE in (each.attributes or {})]
    (header,) = server.last.headers["traceparent"]
    assert span.context is not None
    return header.split("-")[2] == f"{span.context.span_id:016x}"


def after(answer: tgi.Answer, seconds: float = 0.21) -> tgi.Answer:
    """An answer that takes as long as its headers say."""
    return replace(answer, headers_after=seconds)


WHOLE: dict[str, Callable[[Any], Any]] = {
    "generate": lambda client: client.generate("secret", max_new_tokens=5),
    "chat": lambda client: client.chat(MESSAGES, max_tokens=5),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole(
    captured: CapturedTelemetry, server: TgiServer, client: Client, name: str
) -> None:
    """Usage, finish reason, the phases of the headers, and the parameters."""
    found = server.answer_later(0.21) or WHOLE[name](client)
    assert found is not None
    assert outcome(captured) == ("ok", None)
    check_whole(request(captured), name)
    assert traced(server, captured)


@pytest.mark.parametrize("name", WHOLE)
async def test_whole_async(
    captured: CapturedTelemetry, server: TgiServer, aclient: AsyncClient, name: str
) -> None:
    """The same over aiohttp."""
    server.answer_later(0.21)
    assert await WHOLE[name](aclient) is not None
    assert outcome(captured) == ("ok", None)
    check_whole(request(captured), name)
    assert traced(server, captured)
