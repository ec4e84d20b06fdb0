"""Short ways to call through huggingface_hub and to look at what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from huggingface_hub import InferenceClient

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.telemetry import Telemetry
from otel_llm.testing import CapturedTelemetry
from tests.fakes.openai_server import Answer
from tests.fakes.tgi import TgiServer

MESSAGES = [{"role": "user", "content": "secret"}]
Stream = Callable[[InferenceClient], Iterator[Any]]
STREAMS: dict[str, Stream] = {
    "text": lambda client: client.text_generation("secret", stream=True),
    "details": lambda client: client.text_generation("secret", stream=True, details=True),
    "chat": lambda client: client.chat_completion(MESSAGES, stream=True),
    "openai": lambda client: client.chat.completions.create(messages=MESSAGES, stream=True),
}


def instrument(telemetry: Telemetry) -> None:
    """Patch the library."""
    config.RUNTIME.telemetry = telemetry
    otel_llm.instrument(engines=["huggingface"])


@contextmanager
def closing(client: InferenceClient) -> Iterator[InferenceClient]:
    """The client; what it has open is closed afterwards, if the release knows how."""
    yield client
    if hasattr(client, "close"):
        client.close()


def after(answer: Answer, seconds: float = 0.21) -> Answer:
    """An answer that takes as long as its headers say."""
    return replace(answer, headers_after=seconds)


def requests(captured: CapturedTelemetry) -> list[Any]:
    """The request spans that have ended."""
    return [each for each in captured.spans if semconv.SIDE in (each.attributes or {})]


def request(captured: CapturedTelemetry) -> Any:
    """What is on the one request span; no word of what was asked is on it."""
    (span,) = requests(captured)
    assert "secret" not in f"{span.attributes} {span.status.description} {span.events}"
    return span.attributes


def outcome(captured: CapturedTelemetry) -> tuple[Any, Any]:
    """How the one request ended, and why."""
    found = request(captured)
    return found[semconv.OUTCOME], found.get(semconv.ERROR_TYPE)


def named(error: BaseException) -> str:
    """What an exception is called in telemetry."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def tokens(captured: CapturedTelemetry) -> tuple[Any, Any]:
    """Input and output tokens of the one request."""
    found = request(captured)
    return found.get(semconv.INPUT_TOKENS), found.get(semconv.OUTPUT_TOKENS)


def traceparents(server: TgiServer) -> int:
    """How many of them the last request carries."""
    return len(server.last.headers.get("traceparent", []))


def traced(server: TgiServer, captured: CapturedTelemetry) -> bool:
    """Whether the last request carries the request span, and carries it once."""
    context = requests(captured)[-1].context
    (header,) = server.last.headers["traceparent"]
    return header.split("-")[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
