"""Short ways to call through a client library and to look at what was written."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import openai

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.fakes.openai_server import OpenAIServer

MESSAGES = [{"role": "user", "content": "hi"}]
STREAMED = {"model": "tiny", "messages": MESSAGES, "stream": True}
WHOLE = {"model": "tiny", "messages": MESSAGES}


def client(server: OpenAIServer, **options: Any) -> Any:
    """A client of *server* that does not retry."""
    return openai.OpenAI(**_options(server) | options)


def aclient(server: OpenAIServer, **options: Any) -> Any:
    """As `client`, for asynchronous applications."""
    return openai.AsyncOpenAI(**_options(server) | options)


def _options(server: OpenAIServer) -> dict[str, Any]:
    return {"base_url": server.url, "api_key": "secret", "max_retries": 0, "timeout": 10}


def requests(captured: CapturedTelemetry) -> list[Any]:
    """The request spans that have ended."""
    return [each for each in captured.spans if semconv.SIDE in (each.attributes or {})]


def request(captured: CapturedTelemetry) -> Any:
    """The one request span."""
    (span,) = requests(captured)
    return span


def attributes(captured: CapturedTelemetry) -> Any:
    """What is on the one request span."""
    return request(captured).attributes


def outcomes(captured: CapturedTelemetry) -> list[str]:
    """How the requests that have ended did so."""
    return [each.attributes[semconv.OUTCOME] for each in requests(captured)]


def soon(true: Callable[[], bool], within: float = 5.0) -> bool:
    """Whether it becomes true before long: exports from another thread give no signal."""
    until = time.monotonic() + within
    while not true() and time.monotonic() < until:
        time.sleep(0.002)
    return true()


def collected() -> None:
    """Garbage is gone."""
    gc.collect()
