"""HTTP responses watched in place: httpx, requests, aiohttp.

Whatever way the application reads the body (bytes, lines, JSON), its bytes pass here once and are
cut into records. Records are parsed up to the first token; after it only the last few, and those
that are no JSON objects or speak of an error.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from otel_llm.clients import network
from otel_llm.clients.failures import leaving, note_status
from otel_llm.clients.overriding import is_overridden, override, state
from otel_llm.clients.reader import ReplyReader
from otel_llm.clients.stream import ClientStream
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.replies.wire import LARGEST_RECORD, DocumentRecords, Record, records_for
from otel_llm.timeline.chunks import BLOCK

LARGEST_REPLY = LARGEST_RECORD
"""Bytes; a larger reply is not looked into."""
_STREAMS = ("text/event-stream", "ndjson", "jsonl", "json-lines", "stream+json")


class ByteStream(ClientStream):
    """The body of one response, as its bytes pass."""

    __slots__ = ("_enough", "_is_document", "_records", "_replies", "waits")

    def __init__(
        self,
        live: LiveRequest,
        reader: ReplyReader,
        content_type: str | None,
        done: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        super().__init__(live, reader, done=done)
        live.recorder.streaming = is_stream(content_type)
        self._replies = reader
        self._records = records_for(content_type)
        self._is_document = isinstance(self._records, DocumentRecords)
        if self._is_document:  # its bytes are no chunks, and none of them is the first token
            live.recorder.chunks = None
        self._enough = False
        self.waits = False
        """True while a read is going on; closing the response then belongs to its end."""
        reader.terminated = lambda: reader.reply.terminator

    def took(self, data: bytes) -> None:
        """One read has brought *data*."""
        self.waits = False
        if self._ended:
            return
        with guard("client.bytes"):
            now, times = self._clock(), self.times
            records = self._records.feed(data)
            if records and not self._is_document:  # whatever its type says
                self.live.recorder.streaming = True
            for record in records:
                if len(times.asked) < len(times.got):
                    times.asked.append(now)
                if len(times.got) >= BLOCK:
                    times.fold()
                self._take(record, now)

    def asks(self) -> None:
        """The application asks for more.

        A read that has brought no whole record leaves the earlier time of asking as it is.
        """
        self.waits = True
        times, now = self.times, self._clock()
        if len(times.asked) < len(times.got):
            times.asked.append(now)
        elif not times.got and not times.chunks:
            times.asked_at = now

    def _take(self, record: Record, now: float) -> None:
        data = record.data
        if self._enough and data[:1] == "{" and data[-1:] == "}" and '"error"' not in data:
            self.times.got.append(now)
            self._keep(record)
            return
        item = self._replies.parsed(record)
        if item is not None and self._is_document:
            self._replies.whole(item)
        elif item is not None:
            self.times.got.append(now)
            self._enough = self._replies.head(item, now) is not None or self._enough

    def ended(self, failure: BaseException | None) -> None:
        """End the request: the body was read to its end, failed, or was left."""
        if not self._ended:
            with guard("client.bytes"):
                recorder = self.live.recorder
                if not recorder.streaming:
                    self._is_document, recorder.chunks = True, None
                for record in self._records.end():
                    self._take(record, self._clock())
                self._kept = deque(map(self._replies.parsed, self._kept or ()))
                if not recorder.streaming and failure is None:
                    self._replies.reply.end_record = self._replies.reply.error is None
        super().ended(failure)

    def unseen(self) -> None:
        """The body was read to its end, but compressed; nothing is known of it but that."""
        with guard("client.bytes"):
            if not self._ended:
                self._replies.reply.end_record = True
        self.ended(None)

    def closed(self) -> None:
        """The response was closed, and not by reading it to its end."""
        if not self.waits:
            self.ended(leaving())

    @property
    def is_over(self) -> bool:
        """Whether the request has ended; what is read then was read before."""
        return self._ended

    def __del__(self) -> None:
        """Nobody holds the response any more."""
        if not self._ended:
            self.ended(leaving())


def is_stream(content_type: str | None) -> bool:
    """Whether a body of this type comes piece by piece."""
    kind = (content_type or "").lower()
    return any(each in kind for each in _STREAMS)


def watch_response(
    live: LiveRequest,
    reader: ReplyReader,
    response: Any,
    done: Callable[[BaseException | None], None] | None = None,
) -> bool:
    """Watch how the application reads *response*; one that was read already is read here.

    Returns:
        False if that cannot be done: it is no such response, or it is watched already.

    Args:
        live: The open request.
        reader: Reads the reply.
        response: A response of httpx, httpx2, requests or aiohttp.
        done: Called at the end of the body with what went wrong, instead of ending the request.
    """
    with guard("client.response"):
        if is_overridden(response):
            return False
        status = getattr(response, "status_code", None) or getattr(response, "status", None)
        note_status(live, status)
        reader.headers(response.headers)
        network.answered(live, response)
        content_type = response.headers.get("content-type")
        if (body := _body_of(response)) is not None:
            _read_whole(live, reader, body, content_type, done)
            return True
        stream = ByteStream(live, reader, content_type, done)
        if hasattr(response, "iter_content"):
            override(response, stream, _requests)
        elif hasattr(response, "aiter_bytes"):
            _watch_httpx(response, stream)
        else:
            _watch_aiohttp(response, stream)
        return True
    return False


def _body_of(response: Any) -> bytes | None:
    """The body of a response that was read already, or None."""
    for name in ("_content", "_body"):  # httpx and requests; aiohttp
        body = vars(response).get(name) if hasattr(response, "__dict__") else None
        if isinstance(body, bytes):
            return body
    return None


def _read_whole(
    live: LiveRequest,
    reader: ReplyReader,
    body: bytes,
    content_type: str | None,
    done: Callable[[BaseException | None], None] | None,
) -> None:
    """Read a body that is there: nobody knows when its pieces came, so it gives no marks."""
    with guard("client.body"):
        reply = reader.reply
        streaming = live.recorder.streaming = is_stream(content_type)
        records = records_for(content_type) if streaming else DocumentRecords()
        items = [reader.parsed(each) for each in (*records.feed(body), *records.end())]
        tokens = [reader.read(item) for item in items if item is not None]
        if streaming:
            reply.end_record = reply.end_record or (reply.terminator and any(tokens))
        else:
            reply.end_record = reply.error is None
        reader.terminated = lambda: reply.terminator
        reader.finish(live, exhausted=True)
    if done is None:
        live.finish()
    else:
        done(None)


def _watch_httpx(response: Any, stream: ByteStream) -> None:
    """All its ways of reading end in `iter_raw`; what comes from there compressed is not seen."""
    encoded = bool(response.headers.get("content-encoding"))
    if hasattr(response.stream, "__iter__"):
        override(response, stream, _httpx_encoded if encoded else _httpx)
    else:
        override(response, stream, _httpx_async_encoded if encoded else _httpx_async)


def _watch_aiohttp(response: Any, stream: ByteStream) -> None:
    """All its ways of reading go through `content`; a body read whole releases it."""
    from otel_llm.clients.aiohttp import watched_content

    override(response, stream, _aiohttp)
    response.content = watched_content(response.content, stream)


def _httpx(kind: Any) -> dict[str, Any]:
    return {"iter_raw": _iterated(kind.iter_raw), "close": _closing(kind.close)}


def _httpx_encoded(kind: Any) -> dict[str, Any]:
    return {
        "iter_bytes": _iterated(kind.iter_bytes),
        "iter_raw": _iterated(kind.iter_raw, seen=False),
        "close": _closing(kind.close),
    }


def _httpx_async(kind: Any) -> dict[str, Any]:
    return {"aiter_raw": _aiterated(kind.aiter_raw), "aclose": _aclosing(kind.aclose)}


def _httpx_async_encoded(kind: Any) -> dict[str, Any]:
    return {
        "aiter_bytes": _aiterated(kind.aiter_bytes),
        "aiter_raw": _aiterated(kind.aiter_raw, seen=False),
        "aclose": _aclosing(kind.aclose),
    }


def _requests(kind: Any) -> dict[str, Any]:
    """Its `content`, `text`, `json` and `iter_lines` all go through `iter_content`."""
    return {"iter_content": _iterated(kind.iter_content), "close": _closing(kind.close)}


def _aiohttp(kind: Any) -> dict[str, Any]:
    return {"close": _closing(kind.close), "release": _closing(kind.release)}


def _iterated(original: Any, *, seen: bool = True) -> Any:
    """A way of reading whose pieces are looked at, or (not *seen*) only come to an end."""

    @functools.wraps(original)
    def iterate(self: Any, *args: Any, **kwargs: Any) -> Any:
        stream: ByteStream = state(self)
        pieces = original(self, *args, **kwargs)
        if stream.waits or stream.is_over:  # a watched way goes through this one, or went
            return pieces
        return _passed(stream, pieces, seen=seen)

    return iterate


def _passed(stream: ByteStream, pieces: Iterator[Any], *, seen: bool) -> Iterator[Any]:
    failure: BaseException | None = None
    try:
        stream.asks()
        for piece in pieces:
            stream.took(_bytes(piece) if seen else b"")
            yield piece
            stream.asks()
    except BaseException as error:
        failure = error
        raise
    finally:
        stream.ended(failure) if seen or failure else stream.unseen()


def _aiterated(original: Any, *, seen: bool = True) -> Any:
    """As `_iterated`."""

    @functools.wraps(original)
    def iterate(self: Any, *args: Any, **kwargs: Any) -> Any:
        stream: ByteStream = state(self)
        pieces = original(self, *args, **kwargs)
        if stream.waits or stream.is_over:
            return pieces
        return _apassed(stream, pieces, seen=seen)

    return iterate


async def _apassed(
    stream: ByteStream, pieces: AsyncIterator[Any], *, seen: bool
) -> AsyncIterator[Any]:
    failure: BaseException | None = None
    try:
        stream.asks()
        async for piece in pieces:
            stream.took(_bytes(piece) if seen else b"")
            yield piece
            stream.asks()
    except BaseException as error:
        failure = error
        raise
    finally:
        stream.ended(failure) if seen or failure else stream.unseen()


def _bytes(piece: Any) -> bytes:
    """A piece, which requests may have decoded."""
    return piece if isinstance(piece, bytes) else str(piece).encode("utf-8", "replace")


def _closing(original: Any) -> Any:
    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            state(self).closed()

    return close


def _aclosing(original: Any) -> Any:
    @functools.wraps(original)
    async def aclose(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        finally:
            state(self).closed()

    return aclose
