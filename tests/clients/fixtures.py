"""The OpenAI client under instrumentation, on the clocks of this process: fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import otel_llm
from otel_llm import config
from otel_llm.clients import engines
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.clients import builders
from tests.fakes.openai_server import Answer, OpenAIServer, serving

Ask = Callable[..., Any]


@pytest.fixture(name="captured")
def captured_fixture() -> Iterator[CapturedTelemetry]:
    """Telemetry in memory, and the OpenAI client patched; no engine is known yet."""
    engines.forget()
    captured = captured_telemetry()
    otel_llm.instrument(engines=["openai"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    yield captured
    engines.forget()


@pytest.fixture(name="serve")
def serve_fixture() -> Iterator[Callable[..., OpenAIServer]]:
    """Starts servers that run until the test ends."""
    with ExitStack() as stack:
        yield lambda *answers: stack.enter_context(serving(*answers))


@pytest.fixture(name="ask")
def ask_fixture(serve: Callable[..., OpenAIServer]) -> Iterator[Ask]:
    """A call of a fresh client whose server answers so: `ask(answer, **body)`."""
    with ExitStack() as stack:

        def call(*answers: Answer, **body: Any) -> Any:
            made = stack.enter_context(builders.client(serve(*answers)))
            return made.chat.completions.create(**builders.STREAMED | body)

        yield call


@pytest.fixture(name="aask")
async def aask_fixture(serve: Callable[..., OpenAIServer]) -> AsyncIterator[Ask]:
    """As `ask`, with an asynchronous client."""
    clients = []

    async def call(*answers: Answer, **body: Any) -> Any:
        made = builders.aclient(serve(*answers))
        clients.append(made)
        return await made.chat.completions.create(**builders.STREAMED | body)

    yield call
    for each in clients:
        await each.close()


@pytest.fixture(name="made")
def made_fixture(serve: Callable[..., OpenAIServer]) -> Iterator[Callable[..., Any]]:
    """Makes a client whose server answers so."""
    clients: list[Any] = []

    def make(*answers: Answer, **options: Any) -> Any:
        clients.append(builders.client(serve(*answers), **options))
        return clients[-1]

    yield make
    for each in clients:
        each.close()
