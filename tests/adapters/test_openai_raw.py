"""Raw and streaming responses of the OpenAI client: passed through untouched, and watched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import STREAMED, WHOLE, aclient, attributes, client, outcomes
from tests.clients.fixtures import captured_fixture, serve_fixture  # noqa: F401 - fixtures
from tests.fakes.openai_server import OpenAIServer, failing, stream, whole

Serve = Callable[..., OpenAIServer]
WORDS = stream(5)
LONG = stream(200)
BODY = b"".join(each for each in WORDS.pieces if isinstance(each, bytes))
RAW = "with_raw_response"
STREAMING = "with_streaming_response"


@pytest.fixture
def way(serve: Serve) -> Iterator[Callable[..., Any]]:
    """`create` of one of the two modes, of a client whose server answers so."""
    clients = []

    def make(mode: str, answer: Any) -> Any:
        clients.append(client(serve(answer)))
        return getattr(clients[-1].chat.completions, mode).create

    yield make
    for each in clients:
        each.close()


def read(captured: CapturedTelemetry) -> bool:
    """Whether the one request was read to its end, and its usage found."""
    assert outcomes(captured) == ["ok"]
    return attributes(captured)[semconv.OUTPUT_TOKENS] == 5


def test_raw(captured: CapturedTelemetry, way: Any) -> None:
    """Headers, bytes and the parsed object of a reply in one piece."""
    raw = way(RAW, whole(headers={"x-request-id": "r1"}))(**WHOLE)
    assert type(raw).__name__ == "LegacyAPIResponse"
    assert raw.request_id == raw.headers["x-request-id"] == "r1"
    assert raw.parse().usage.completion_tokens == 5
    assert json.loads(raw.content)["model"] == "tiny"
    assert raw.http_response.json()["model"] == "tiny"
    assert read(captured)


def test_raw_stream(captured: CapturedTelemetry, way: Any) -> None:
    """`parse` gives a stream of the library's own class."""
    chunks = way(RAW, WORDS)(**STREAMED).parse()
    assert isinstance(chunks, openai.Stream)
    assert outcomes(captured) == []
    assert len(list(chunks)) == 8
    assert read(captured)
    assert semconv.TTFT_US in attributes(captured)


def test_raw_stream_left(captured: CapturedTelemetry, way: Any) -> None:
    """A raw response whose stream is closed in the middle."""
    chunks = way(RAW, LONG)(**STREAMED).parse()
    next(chunks)
    chunks.close()
    assert outcomes(captured) == ["abandoned"]


@pytest.mark.parametrize("mode", [RAW, STREAMING])
def test_http_errors(captured: CapturedTelemetry, way: Any, mode: str) -> None:
    """The library raises as ever."""
    with pytest.raises(openai.RateLimitError):
        _entered(way(mode, failing(429))(**WHOLE))
    assert outcomes(captured) == ["rejected"]


def _entered(manager: Any) -> None:
    with manager:
        pass


STREAM_READS: dict[str, Callable[[Any], bytes]] = {
    "iter_bytes": lambda raw: b"".join(raw.iter_bytes()),
    "iter_bytes(7)": lambda raw: b"".join(raw.iter_bytes(7)),
    "iter_text": lambda raw: "".join(raw.iter_text()).encode(),
    "iter_lines": lambda raw: "".join(each + "\n" for each in raw.iter_lines()).encode(),
    "read": lambda raw: raw.read(),
    "text": lambda raw: raw.text().encode(),
}


@pytest.mark.parametrize("how", STREAM_READS)
def test_streaming_bytes(captured: CapturedTelemetry, way: Any, how: str) -> None:
    """Every way to read the bytes of a stream gives what was sent, and is watched."""
    with way(STREAMING, WORDS)(**STREAMED) as raw:
        assert raw.headers["content-type"] == "text/event-stream"
        assert STREAM_READS[how](raw) == BODY
    assert read(captured)
    assert semconv.TTFT_US in attributes(captured)


def test_streaming_parse(captured: CapturedTelemetry, way: Any) -> None:
    """The parsed stream of a streaming response."""
    with way(STREAMING, WORDS)(**STREAMED) as raw:
        assert len(list(raw.parse())) == 8
    assert read(captured)


@pytest.mark.parametrize("how", ["json", "parse", "read", "iter_lines"])
def test_streaming_a_whole_reply(captured: CapturedTelemetry, way: Any, how: str) -> None:
    """A reply in one piece, read late."""
    with way(STREAMING, whole())(**WHOLE) as raw:
        result = getattr(raw, how)()
        if how == "iter_lines":
            assert "tiny" in "".join(result)
    assert read(captured)
    assert semconv.TTFT_US not in attributes(captured)


def test_streaming_left(captured: CapturedTelemetry, way: Any) -> None:
    """The block is left in the middle of the body."""
    with way(STREAMING, LONG)(**STREAMED) as raw:
        next(raw.iter_bytes())
    assert outcomes(captured) == ["abandoned"]


def test_streaming_unread(captured: CapturedTelemetry, way: Any) -> None:
    """The block is left without a read."""
    with way(STREAMING, LONG)(**STREAMED):
        pass
    assert outcomes(captured) == ["abandoned"]


async def test_async_raw(captured: CapturedTelemetry, serve: Serve) -> None:
    """Raw responses of an asynchronous client."""
    async with aclient(serve(WORDS)) as using:
        raw = await using.chat.completions.with_raw_response.create(**STREAMED)
        assert len([each async for each in raw.parse()]) == 8
    assert read(captured)


async def test_async_raw_whole(captured: CapturedTelemetry, serve: Serve) -> None:
    """A raw reply in one piece."""
    async with aclient(serve(whole())) as using:
        raw = await using.chat.completions.with_raw_response.create(**WHOLE)
        assert raw.parse().usage.completion_tokens == 5
    assert read(captured)


async def _text(raw: Any) -> bytes:
    return "".join([each async for each in raw.iter_text()]).encode()


async def _lines(raw: Any) -> bytes:
    return "".join([each + "\n" async for each in raw.iter_lines()]).encode()


async def _bytes(raw: Any) -> bytes:
    return b"".join([each async for each in raw.iter_bytes()])


async def _read(raw: Any) -> bytes:
    return await raw.read()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", [_bytes, _text, _lines, _read])
async def test_async_streaming_bytes(captured: CapturedTelemetry, serve: Serve, how: Any) -> None:
    """Every way to read the bytes of an asynchronous stream."""
    async with aclient(serve(WORDS)) as using:
        create = using.chat.completions.with_streaming_response.create
        async with create(**STREAMED) as raw:
            assert await how(raw) == BODY
    assert read(captured)
    assert semconv.TTFT_US in attributes(captured)


async def test_async_streaming_parse(captured: CapturedTelemetry, serve: Serve) -> None:
    """The parsed stream of an asynchronous streaming response."""
    async with aclient(serve(WORDS)) as using:
        create = using.chat.completions.with_streaming_response.create
        async with create(**STREAMED) as raw:
            assert len([each async for each in await raw.parse()]) == 8
    assert read(captured)


async def test_async_streaming_left(captured: CapturedTelemetry, serve: Serve) -> None:
    """The block is left in the middle of the body."""
    async with aclient(serve(LONG)) as using:
        create = using.chat.completions.with_streaming_response.create
        async with create(**STREAMED) as raw:
            async for _ in raw.iter_lines():
                break
    assert outcomes(captured) == ["abandoned"]
