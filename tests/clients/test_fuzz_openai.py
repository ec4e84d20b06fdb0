"""Whatever a server sends, and however it is cut: the application sees what it sees without us.

Errors of ours are raised in tests, so that one would be seen as a difference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import context as context_api

from otel_llm import semconv
from otel_llm.clients import engines
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import STREAMED, requests
from tests.clients.transport import Transport, aclient, client
from tests.fakes.openai_server import END, RECORDINGS, ROLE, SSE, chunk, event, word
from tests.replies.test_fuzz import JSON

RECORDED = [
    (RECORDINGS / f"{name}.body").read_bytes()
    for name in ("chat_stream", "chat_stream_metrics", "responses_stream", "chat_invalid")
]
GOOD = st.sampled_from([ROLE, word(), chunk({}, "stop"), *END, b": comment\n\n"])
SHAPED = st.one_of(
    st.builds(chunk, JSON, JSON),
    st.builds(lambda usage: chunk(None, usage=usage), JSON),
    st.builds(lambda choices: chunk(None, choices=choices), JSON),
    st.builds(lambda error: event({"error": error}), JSON),
    st.builds(lambda item: event(item, "thread.x"), JSON),
    st.builds(event, JSON),
)
NOISE = st.binary(max_size=30)
BODIES = st.one_of(
    st.lists(st.one_of(GOOD, SHAPED, NOISE), max_size=12).map(b"".join),
    st.sampled_from(RECORDED),
)
KINDS = st.sampled_from([SSE, "application/json", "text/plain", "application/x-ndjson", ""])
TIMES = ("_us", "time_to_first_chunk", "sources", "buffered", ".stalls")
FUZZ = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    """*body* cut at these places."""
    places = sorted({0, len(body), *(each % (len(body) + 1) for each in at)})
    return [body[start:end] for start, end in pairwise(places)]


@contextmanager
def suppressed() -> Iterator[None]:
    """Nothing of ours does anything."""
    token = context_api.attach(context_api.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        context_api.detach(token)


def seen(read: Callable[[], Any]) -> list[str]:
    """What the application sees: the items, and the error at their end."""
    found: list[str] = []
    try:
        for item in read():
            found.append(repr(item))
    except Exception as error:
        found.append(f"{type(error).__name__} {error}")
    return found


async def seen_later(read: Callable[[], Any]) -> list[str]:
    """As `seen`, asynchronous."""
    found: list[str] = []
    try:
        async for item in await read():
            found.append(repr(item))
    except Exception as error:
        found.append(f"{type(error).__name__} {error}")
    return found


def facts(captured: CapturedTelemetry) -> dict[str, Any]:
    """What was written of the last request, times left out; nothing is remembered of it."""
    engines.forget()
    found = requests(captured)[-1].attributes
    return {name: value for name, value in found.items() if not any(each in name for each in TIMES)}


@pytest.fixture
def transport() -> Transport:
    """What both clients are on."""
    return Transport()


@FUZZ
@given(body=BODIES, at=st.lists(st.integers(0, 4000), max_size=8))
def test_streams(
    captured: CapturedTelemetry, transport: Transport, body: bytes, at: list[int]
) -> None:
    """Same items, same error, one span; and any split of the bytes gives the same facts."""
    with client(transport) as using:
        create = using.chat.completions.create
        transport.pieces = [body]
        with suppressed():
            bare = seen(lambda: create(**STREAMED))
        before = len(requests(captured))
        assert bare == seen(lambda: create(**STREAMED))
        whole = facts(captured)
        transport.pieces = cut(body, at)
        assert bare == seen(lambda: create(**STREAMED))
    assert whole == facts(captured)
    assert len(requests(captured)) == before + 2


@FUZZ
@given(body=BODIES, at=st.lists(st.integers(0, 4000), max_size=8))
def test_async_streams(
    captured: CapturedTelemetry, transport: Transport, body: bytes, at: list[int]
) -> None:
    """The same, asynchronous."""

    async def check() -> None:
        async with aclient(transport) as using:
            create = using.chat.completions.create
            transport.pieces = [body]
            with suppressed():
                bare = await seen_later(lambda: create(**STREAMED))
            assert bare == await seen_later(lambda: create(**STREAMED))
            whole = facts(captured)
            transport.pieces = cut(body, at)
            assert bare == await seen_later(lambda: create(**STREAMED))
        assert whole == facts(captured)

    asyncio.run(check())


@FUZZ
@given(body=BODIES, kind=KINDS, at=st.lists(st.integers(0, 4000), max_size=8))
def test_bytes(
    captured: CapturedTelemetry, transport: Transport, body: bytes, kind: str, at: list[int]
) -> None:
    """A streaming response read as bytes, of any content type."""
    transport.content_type = kind
    with client(transport) as using:
        create = using.chat.completions.with_streaming_response.create

        def read() -> Iterator[bytes]:
            with create(**STREAMED) as raw:
                yield from raw.iter_bytes()

        transport.pieces = [body]
        whole_bytes = b"".join(read())
        whole = facts(captured)
        transport.pieces = cut(body, at)
        assert body == b"".join(read()) == whole_bytes
    assert whole == facts(captured)


@FUZZ
@given(reply=JSON)
def test_whole_replies(captured: CapturedTelemetry, transport: Transport, reply: object) -> None:
    """Any JSON in place of a reply."""
    transport.content_type = "application/json"
    transport.pieces = [json.dumps(reply).encode()]
    asked = {**STREAMED, "stream": False}
    with client(transport) as using:

        def read() -> list[Any]:
            return [using.chat.completions.create(**asked)]

        with suppressed():
            bare = seen(read)
        assert bare == seen(read)
    assert facts(captured)[semconv.SIDE] == "client"
