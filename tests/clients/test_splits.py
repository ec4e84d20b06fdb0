"""The same bytes give the same facts, however they are cut into reads, and no bytes raise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm import semconv
from otel_llm.clients.http import ByteStream
from otel_llm.clients.reader import ReplyReader
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Side
from otel_llm.timeline.chunks import BLOCK
from tests.fakes import ollama_server, openai_server
from tests.fakes.openai_server import Answer
from tests.replies.builders import DATA

SSE, NDJSON, JSON = openai_server.SSE, ollama_server.NDJSON, openai_server.JSON


def bytes_of(answer: Answer) -> bytes:
    """The body of an answer."""
    return b"".join(each for each in answer.pieces if isinstance(each, bytes))


FILES = ("D-FRM-02.sse", "D-FRM-04.sse", "D-END-02.ndjson", "D-END-04-b.sse", "D-USE-06-a.sse")
BODIES = {
    "openai": (SSE, bytes_of(openai_server.stream(12))),
    "openai, untyped": (None, bytes_of(openai_server.stream(3))),
    "crlf": (SSE, bytes_of(openai_server.stream()).replace(b"\n", b"\r\n")),
    "ollama": (NDJSON, bytes_of(ollama_server.chat(12))),
    "ollama, untyped": ("text/plain", bytes_of(ollama_server.chat(3))),
    "json": (JSON, bytes_of(openai_server.whole())),
    **{name: (SSE if "sse" in name else NDJSON, (DATA / name).read_bytes()) for name in FILES},
}
IGNORED = {semconv.BUFFERED_CHUNKS, semconv.TIME_TO_FIRST_CHUNK}


def opened(
    content_type: str | None, *, capture: bool = False
) -> tuple[CapturedTelemetry, ByteStream]:
    """The body of a reply; the clock stands still."""
    settings = EmitSettings(capture_content=capture)
    captured = captured_telemetry(settings, clock=ManualClock())
    live = captured.telemetry.start(RequestInfo("chat", "mine", "tiny"), Side.CLIENT)
    return captured, ByteStream(live, ReplyReader(live, None, {}), content_type)


def facts(content_type: str | None, reads: list[bytes], *, capture: bool) -> dict[str, Any]:
    """Everything on the span of a reply that came in these reads."""
    captured, reply = opened(content_type, capture=capture)
    for data in reads:
        reply.asks()
        reply.took(data)
    reply.asks()
    reply.ended(None)
    found = dict(captured.span("chat tiny").attributes or {})
    return {name: value for name, value in found.items() if name not in IGNORED}


@st.composite
def cuts(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """The body, cut at some places; some reads are empty."""
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=40)))
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]


@given(name=st.sampled_from(sorted(BODIES)), data=st.data(), capture=st.booleans())
def test_any_split(name: str, data: st.DataObject, capture: bool) -> None:
    """D-FRM-03: one read, or any number of them."""
    content_type, body = BODIES[name]
    expected = facts(content_type, [body], capture=capture)
    reads = data.draw(cuts(body))
    assert expected == facts(content_type, reads, capture=capture)


@pytest.mark.parametrize("name", BODIES)
def test_single_bytes(name: str) -> None:
    """A read for each byte."""
    content_type, body = BODIES[name]
    reads = [bytes([each]) for each in body]
    expected = facts(content_type, [body], capture=True)
    assert expected == facts(content_type, reads, capture=True)


@pytest.mark.parametrize("kind", [SSE, NDJSON])
def test_an_error_among_many(kind: str) -> None:
    """An error is seen wherever it stands, also where nothing else is read."""
    words = [ollama_server.said()] * 20
    lines = [*words, b'{"error":"secret"}\n', *words, ollama_server.end()]
    reads = [b"data: " + each + b"\n" if kind is SSE else each for each in lines]
    found = facts(kind, reads, capture=False)
    assert (found[semconv.OUTCOME], found[semconv.ERROR_TYPE]) == ("error", "stream_error")


def test_an_error_that_is_said() -> None:
    """A word of the answer is no error."""
    lines = [ollama_server.said('"error": 1')] * 20
    assert facts(NDJSON, [*lines, ollama_server.end()], capture=False)[semconv.OUTCOME] == "ok"


@pytest.mark.parametrize("kind", [SSE, NDJSON])
def test_noise_among_many(kind: str) -> None:
    """What is no JSON is counted wherever it stands."""
    words = [ollama_server.said()] * 20
    lines = [*words, b"nonsense\n", *words, ollama_server.end()]
    reads = [b"data: " + each + b"\n" if kind is SSE else each for each in lines]
    found = facts(kind, reads, capture=False)
    assert (found[semconv.OUTCOME], found[semconv.MALFORMED_RECORDS]) == ("ok", 1)


@given(
    content_type=st.sampled_from([SSE, NDJSON, JSON, None, "text/plain", "nonsense; charset=x"]),
    reads=st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(sorted(
        [b"data: ", b"\n\n", b"[DONE]", b'{"error":', b'{"choices":[{}]}', b"null", b"\r"]
    ))), max_size=12),
    capture=st.booleans(),
)  # fmt: skip
def test_no_bytes_raise(content_type: str | None, reads: list[bytes], capture: bool) -> None:
    """Whatever comes, one span is written (errors of ours are raised in tests)."""
    assert facts(content_type, reads, capture=capture)[semconv.OUTCOME] in {
        "ok", "error", "rejected",
    }  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 1_000])
def test_memory_does_not_grow(at_once: int) -> None:
    """However long a stream is, and however many of its records come in one read."""
    _, reply = opened(NDJSON)
    for _ in range(10_000 // at_once):
        reply.asks()
        reply.took(ollama_server.said() * at_once)
        assert len(reply.times.got) <= BLOCK
    reply.ended(None)


@pytest.mark.parametrize("name", ["openai", "ollama"])
def test_facts_without_content(name: str) -> None:
    """Only the head and the tail are read, and that is enough."""
    found = facts(*_one_read(name), capture=False)
    assert (found[semconv.OUTPUT_TOKENS], found[semconv.FINISH_REASONS]) == (5, ("stop",))
    assert found[semconv.OUTCOME] == "ok"


def _one_read(name: str) -> tuple[str | None, list[bytes]]:
    content_type, body = BODIES[name]
    return content_type, [body]
