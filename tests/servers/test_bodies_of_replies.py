"""What a streamed reply says of itself where no engine tells anything."""

from __future__ import annotations

import pytest

from otel_llm.emit.live import current_request
from otel_llm.servers.reply import StreamedBody
from otel_llm.testing import CapturedTelemetry
from tests.fakes.asgi import Connection, chat_body, chunk, start, streams
from tests.servers.builders import outcome, serve

EMPTY = [
    [],
    [b""],
    [b"data: [DONE]\n\n"],
    [b"data: [DONE]"],
    [b"data:[DONE]\r\n\r\n"],
    [b"data: [DO", b"NE]\n\n"],
    [b": ping\n\n"] * 50,
    [b": p", b"ing " + b"x" * 500, b"data: x\n\n", b"data: [DONE]\n\n"],
    [b"event: end\nid: 7\nretry: 10\ndata:\n\n"],
]
FILLED = [
    [b"data: x\n\n", b"data: [DONE]\n\n"],
    [b"data: {}"],
    [b": ping\n\n", b"da", b"ta: ", b"x"],
    [b'{"done": true}\n'],
    [b"data: [DONE]\n\n", b"data: late\n\n"],
    [b"data: " + b"x" * 500],
]


@pytest.mark.parametrize("chunks", EMPTY)
async def test_an_empty_stream_is_an_error(
    captured: CapturedTelemetry, chunks: list[bytes]
) -> None:
    """HTTP 200 and then nothing, a terminator or comments."""
    await serve(streams(*chunks), captured, Connection(chat_body(stream=True)))
    assert outcome(captured) == ("error", "empty_stream", True)


@pytest.mark.parametrize("chunks", FILLED)
async def test_anything_else_is_a_reply(captured: CapturedTelemetry, chunks: list[bytes]) -> None:
    """However it is cut."""
    await serve(streams(*chunks), captured, Connection(chat_body(stream=True)))
    assert outcome(captured) == ("ok", None, None)


async def test_ndjson_without_a_line(captured: CapturedTelemetry) -> None:
    """The reply's type decides whether it is a stream."""
    await serve(streams(kind="application/x-ndjson"), captured)
    assert outcome(captured)[:2] == ("error", "empty_stream")


async def test_an_empty_reply_in_one_piece(captured: CapturedTelemetry) -> None:
    """It is no stream; embeddings of nothing may be empty."""
    await serve(streams(kind="application/json"), captured)
    assert outcome(captured)[0] == "ok"


async def test_an_engine_that_tells_its_tokens_is_believed(captured: CapturedTelemetry) -> None:
    """Whatever the body looks like."""

    async def app(_scope: object, receive: object, send: object) -> None:
        live = current_request()
        assert live is not None
        await send(start(kind="text/event-stream"))  # type: ignore[operator]
        live.recorder.lane().stamps.append(live.recorder.clock.monotonic_ns())
        await send(chunk(b"data: [DONE]\n\n", more=False))  # type: ignore[operator]

    await serve(app, captured)
    assert outcome(captured) == ("ok", None, None)


def test_nothing_is_kept_of_a_long_line() -> None:
    """Memory does not grow with what a peer sends without a line's end."""
    body = StreamedBody()
    for _ in range(1000):
        body.look(b": " + b"x" * 1000)
    assert (body.silent, len(body._rest)) == (True, 64)
