"""The library under instrumentation, and a server for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient

from otel_llm.clients import engines
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.adapters.huggingface.builders import closing, instrument
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer


@pytest.fixture(params=[""])
def captured(request: pytest.FixtureRequest) -> Iterator[CapturedTelemetry]:
    """Telemetry in memory, on the clocks of this process; no engine is known yet.

    The parameter `content` switches the writing of content on.
    """
    engines.forget()
    made = captured_telemetry(EmitSettings(capture_content=request.param == "content"))
    instrument(made.telemetry)
    yield made
    engines.forget()


@pytest.fixture
def server() -> Iterator[TgiServer]:
    """A server that answers as TGI does."""
    with tgi.serving() as running:
        yield running


@pytest.fixture
def client(server: TgiServer) -> Iterator[InferenceClient]:
    """A client of it."""
    with closing(InferenceClient(server.root, timeout=10)) as made:
        yield made


@pytest.fixture
async def aclient(server: TgiServer) -> AsyncIterator[AsyncInferenceClient]:
    """As `client`, for asynchronous applications."""
    made = AsyncInferenceClient(server.root, timeout=10)
    yield made
    await made.close()
