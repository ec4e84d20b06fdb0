"""Tests that need `text_generation`, and so an old huggingface_hub.

`tests/adapters/test_text_generation.py` runs them in an environment of their own.
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
import requests
from opentelemetry import trace
from text_generation import AsyncClient, Client
from text_generation import client as module
from text_generation.errors import OverloadedError, ValidationError
from text_generation.types import Message

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer

# The library calls pydantic as its first release had it.
pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")
MESSAGES = [Message(role="user", content="secret")]


@pytest.fixture
def captured() -> CapturedTelemetry:
    """Telemetry in memory, and the library patched."""
    made = captured_telemetry()
    config.RUNTIME.telemetry = made.telemetry
    otel_llm.instrument(engines=["text_generation"])
    return made


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


WHOLE: dict[str, tuple[Callable[[Any], Any], object]] = {
    "text_completion": (
        lambda client: client.generate("secret", max_new_tokens=5),
        [tgi.generated(details=True)],
    ),
    "chat": (lambda client: client.chat(MESSAGES, max_tokens=5), tgi.completion()),
}


def check_whole(captured: CapturedTelemetry, operation: str) -> None:
    """Usage, finish reason, the phases of the headers, and the parameters."""
    found = request(captured)
    assert outcome(captured) == ("ok", None)
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (9, 3)
    assert len(found[semconv.FINISH_REASONS]) == 1
    assert found["otel_llm.queue_us"] == 40_000
    assert found[semconv.REPORTED_INFERENCE_US] == 160_000
    assert (found[semconv.OPERATION], found[semconv.PROVIDER]) == (operation, "tgi")
    assert found[semconv.MAX_TOKENS] == 5
    assert semconv.REQUEST_MODEL not in found


@pytest.mark.parametrize("operation", WHOLE)
def test_whole(
    captured: CapturedTelemetry, server: TgiServer, client: Client, operation: str
) -> None:
    """A reply in one piece over requests."""
    call, answer = WHOLE[operation]
    server.answers = [after(tgi.plain(answer))]
    assert call(client) is not None
    check_whole(captured, operation)
    assert traced(server, captured)


@pytest.mark.parametrize("operation", WHOLE)
async def test_whole_async(
    captured: CapturedTelemetry, server: TgiServer, aclient: AsyncClient, operation: str
) -> None:
    """A reply in one piece over aiohttp."""
    call, answer = WHOLE[operation]
    server.answers = [after(tgi.plain(answer))]
    assert await call(aclient) is not None
    check_whole(captured, operation)
    assert traced(server, captured)


def test_a_stream(captured: CapturedTelemetry, server: TgiServer, client: Client) -> None:
    """Nothing is sent before the first read; the items and the generator are the library's."""
    items = client.generate_stream("secret")
    assert inspect.isgenerator(items)
    assert (items.__name__, server.asked) == ("generate_stream", [])
    assert [item.token.text for item in items] == ["Blue", " sky", "</s>"]
    found = request(captured)
    assert outcome(captured) == ("ok", None)
    assert (found[semconv.OUTPUT_TOKENS], found[semconv.FINISH_REASONS]) == (3, ("eos_token",))
    assert {"otel_llm.ttft_us", "otel_llm.tpot_us"} <= set(found)
    assert "otel_llm.queue_us" not in found
    assert found[semconv.MAX_TOKENS] == 20  # the library's own default
    assert traced(server, captured)


async def test_a_stream_async(
    captured: CapturedTelemetry, server: TgiServer, aclient: AsyncClient
) -> None:
    """The same over aiohttp; the method need not be awaited."""
    items = aclient.generate_stream("secret")
    assert inspect.isasyncgen(items)
    assert [item.token.text async for item in items] == ["Blue", " sky", "</s>"]
    assert outcome(captured) == ("ok", None)
    assert request(captured)[semconv.OUTPUT_TOKENS] == 3
    assert traced(server, captured)


def test_a_streamed_chat(captured: CapturedTelemetry, server: TgiServer, client: Client) -> None:
    """As the servers of its day sent it, with `tool_calls` and without a terminator."""
    said = [{"role": "assistant", "content": each, "tool_calls": None} for each in tgi.WORDS]
    server.answers = [tgi.streamed(*map(tgi.chunk, said), tgi.chunk(said[0], "eos_token"))]
    assert len(list(client.chat(MESSAGES, stream=True))) == 4
    assert outcome(captured) == ("ok", None)
    assert request(captured)[semconv.RESPONSE_MODEL] == "acme/tiny"


@pytest.mark.parametrize("read", [0, 1])
def test_left(captured: CapturedTelemetry, client: Client, read: int) -> None:
    """Never read, or dropped in the middle."""
    items = client.generate_stream("secret")
    for _ in range(read):
        next(items)
    del items
    assert outcome(captured) == ("abandoned", None)


async def test_left_async(captured: CapturedTelemetry, aclient: AsyncClient) -> None:
    """Closed in the middle."""
    items: Any = aclient.generate_stream("secret")
    await anext(items)
    await items.aclose()
    assert outcome(captured) == ("abandoned", None)


async def test_cancelled(
    captured: CapturedTelemetry, server: TgiServer, aclient: AsyncClient
) -> None:
    """Cancelled while it waits for the second token."""
    server.answers = [tgi.streamed(*tgi.events()[:1], 1.0)]
    items: Any = aclient.generate_stream("secret")
    await anext(items)
    task = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0.02)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert outcome(captured)[0] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "expected"), [(422, "rejected"), (429, "rejected"), (500, "error")]
)
def test_a_refusal(
    captured: CapturedTelemetry,
    server: TgiServer,
    client: Client,
    status: int,
    expected: str,
    stream: bool,
) -> None:
    """The status is on the span although the library's exception does not have it."""
    server.answers = [tgi.failing(status, "overloaded")]
    method: Any = client.generate_stream if stream else client.generate
    with pytest.raises(OverloadedError):
        list(method("secret"))
    assert outcome(captured) == (expected, str(status))
    assert request(captured)[semconv.HTTP_STATUS] == status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_async(
    captured: CapturedTelemetry, server: TgiServer, aclient: AsyncClient, stream: bool
) -> None:
    """The same over aiohttp."""
    server.answers = [tgi.failing(429, "overloaded")]
    with pytest.raises(OverloadedError):
        _ = (
            [item async for item in aclient.generate_stream("secret")]
            if stream
            else (await aclient.generate("secret"))
        )
    assert outcome(captured) == ("rejected", "429")


@pytest.mark.parametrize(
    ("name", "raised", "expected"),
    [
        ("D-END-04-a.sse", ValidationError, ("rejected", "validation")),
        ("D-END-04-b.sse", OverloadedError, ("error", "overloaded")),
    ],
)
def test_an_error_in_the_stream(
    captured: CapturedTelemetry,
    server: TgiServer,
    client: Client,
    name: str,
    raised: type[Exception],
    expected: tuple[str, str],
) -> None:
    """D-END-04: its type is the server's."""
    server.answers = [tgi.case(name)]
    with pytest.raises(raised):
        list(client.generate_stream("secret"))
    assert outcome(captured) == expected


def test_no_space_after_the_colon(
    captured: CapturedTelemetry, server: TgiServer, client: Client
) -> None:
    """D-FRM-04."""
    server.answers = [tgi.case("D-FRM-04.sse")]
    assert len(list(client.generate_stream("secret"))) == 3
    assert outcome(captured) == ("ok", None)
    assert request(captured)[semconv.OUTPUT_TOKENS] == 3


@pytest.mark.parametrize("operation", WHOLE)
def test_content(client: Client, operation: str) -> None:
    """Prompt and answer, if they are asked for."""
    made = captured_telemetry(EmitSettings(capture_content=True))
    config.RUNTIME.telemetry = made.telemetry
    otel_llm.instrument(engines=["text_generation"])
    WHOLE[operation][0](client)
    (span,) = [each for each in made.spans if semconv.SIDE in (each.attributes or {})]
    said = [
        json.loads(span.attributes[name])[0]["parts"][0]["content"]
        for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES)
    ]
    assert said == ["secret", "Blue sky"]


def test_arguments_that_do_not_fit(captured: CapturedTelemetry, client: Client) -> None:
    """They are the library's affair, and no request."""
    with pytest.raises(TypeError, match="prompt"):
        client.generate()
    assert captured.spans == []


@pytest.mark.parametrize("headers", [None, {"X-Own": "1", "Traceparent": "00-0a-0b-01"}])
def test_headers(
    captured: CapturedTelemetry, server: TgiServer, headers: dict[str, str] | None
) -> None:
    """The application's own are sent as they are, and the client object stays as it is."""
    client = Client(server.root, headers=headers)
    client.generate("secret")
    assert client.headers is headers
    if headers is not None:
        assert server.last.headers["traceparent"] == [headers["Traceparent"]]
        assert server.last.headers["x-own"] == ["1"]


@pytest.mark.parametrize("method", ["generate", "generate_stream"])
def test_the_span_is_current_while_the_request_is_sent(
    captured: CapturedTelemetry, client: Client, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """What traces HTTP finds its parent, and afterwards nothing is left behind."""
    seen = []
    post = requests.post

    def posting(*args: Any, **kwargs: Any) -> Any:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return post(*args, **kwargs)

    monkeypatch.setattr(requests, "post", posting)
    for _ in getattr(client, method)("secret"):
        assert not trace.get_current_span().get_span_context().is_valid
    (span,) = [each for each in captured.spans if semconv.SIDE in (each.attributes or {})]
    assert span.context is not None
    assert seen == [span.context.span_id]


def test_undone(captured: CapturedTelemetry, server: TgiServer, client: Client) -> None:
    """The library's own functions are back, and its modules."""
    config.uninstrument()
    assert inspect.isgeneratorfunction(Client.generate_stream)
    assert inspect.ismodule(module.requests)
    assert inspect.isclass(module.ClientSession)
    client.generate("secret")
    assert (captured.spans, server.last.headers.get("traceparent")) == ([], None)
