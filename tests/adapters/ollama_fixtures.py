"""Ollama's client under instrumentation, against a server on loopback: fixtures and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import ollama
import pytest

import otel_llm
from otel_llm import config
from otel_llm.clients import engines
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes.ollama_server import RECORDINGS, base, lines
from tests.fakes.openai_server import Answer, OpenAIServer, serving
from tests.replies.builders import DATA

Serve = Callable[..., OpenAIServer]
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "secret"}]}


@pytest.fixture(name="captured")
def captured_fixture() -> Iterator[CapturedTelemetry]:
    """Telemetry in memory, and Ollama's client patched."""
    engines.forget()
    captured = captured_telemetry()
    otel_llm.instrument(engines=["ollama"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    yield captured
    engines.forget()


@pytest.fixture(name="serve")
def serve_fixture(captured: CapturedTelemetry) -> Iterator[Serve]:
    """Starts servers that run until the test ends."""
    with ExitStack() as stack:
        yield lambda *answers: stack.enter_context(serving(*answers))


@pytest.fixture(name="client")
def client_fixture(serve: Serve) -> Iterator[Callable[..., ollama.Client]]:
    """Clients of a server that answers so: `client(answer, …)`."""
    with ExitStack() as stack:

        def made(*answers: Answer) -> ollama.Client:
            return stack.enter_context(ollama.Client(base(serve(*answers))))

        yield made


Client = Callable[..., ollama.Client]


def last_of(name: str) -> Any:
    """The last line of a recorded answer."""
    return json.loads((RECORDINGS / f"{name}.body").read_text().splitlines()[-1])


def case(name: str) -> Answer:
    """The lines of a field case, each sent on its own."""
    return lines(*(DATA / name).read_bytes().splitlines(keepends=True))
