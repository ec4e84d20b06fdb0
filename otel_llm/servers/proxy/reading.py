"""What is read of an answer, after it was handed over: a stream's records, or one document.

Nothing here changes or holds what passes. It is bounded: a document, and a compressed body once it
is unpacked, is read up to a limit; beyond it the answer only has its end.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from otel_llm.clients.http import ByteStream, is_stream
from otel_llm.clients.reader import ReplyReader
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.replies.wire import NdjsonRecords, SseRecords
from otel_llm.servers.body import declared
from otel_llm.timeline import Mark

_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Reading(Protocol):
    """Reads one answer. Times are monotonic seconds. Never raises."""

    def took(self, data: bytes, came: float, accepted: float) -> None:
        """A piece *came*, and the client's side *accepted* it."""

    def ended(self, *, whole: bool) -> None:
        """The answer is over; *whole* if it came to its end. Writes what was read."""


def reading_of(
    live: LiveRequest, reader: ReplyReader, headers: Mapping[str, str], limit: int
) -> Reading:
    """The right way to read an answer with these headers."""
    content_type = headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    encoding = headers.get("content-encoding", "identity").strip().lower()
    large = declared(headers) > limit
    unpacks = encoding in _WINDOW and not large
    if encoding not in {"identity", ""} and not unpacks:
        return Unread(live, reader)
    found: Reading
    if is_stream(content_type):
        found = Stream(live, reader, content_type, limit)
    elif large or not (kind == "application/json" or kind.endswith("+json")):
        return Unread(live, reader)
    else:
        found = Document(live, reader, limit)
    return Unpacked(live, found, _WINDOW[encoding], limit) if unpacks else found


class _Moment:
    """When what is read now happened."""

    __slots__ = ("now",)

    def __init__(self, now: float) -> None:
        self.now = now

    def read(self) -> float:
        return self.now


class _Tape(ByteStream):
    """A byte stream that is told when something happened, since it is read later."""

    def __init__(
        self, live: LiveRequest, reader: ReplyReader, content_type: str, limit: int
    ) -> None:
        super().__init__(live, reader, content_type, done=_nothing)
        self._records = (SseRecords if "event-stream" in content_type else NdjsonRecords)(limit)
        self.moment = _Moment(self._called)
        self._clock = self.moment.read


def _nothing(_failure: BaseException | None) -> None:
    """The exchange ends the request."""


class Stream:
    """Server-sent events, or lines; those beyond *limit* bytes are skipped."""

    def __init__(
        self, live: LiveRequest, reader: ReplyReader, content_type: str, limit: int
    ) -> None:
        self._recorder = live.recorder
        self._tape = _Tape(live, reader, content_type.lower(), limit)
        self._awaits = True

    def took(self, data: bytes, came: float, accepted: float) -> None:
        """Read the records that are whole now."""
        tape, moment = self._tape, self._tape.moment
        moment.now = came
        tape.took(data)
        moment.now = accepted
        tape.asks()
        if self._awaits and self._recorder.has(Mark.FIRST_TOKEN):
            self._awaits = False
            self._recorder.mark(Mark.FIRST_DELIVERED, round(accepted * 1e9))

    def ended(self, *, whole: bool) -> None:  # noqa: ARG002 - records show it
        """Read what the end completes."""
        self._tape.ended(None)


class Document:
    """One JSON document."""

    def __init__(self, live: LiveRequest, reader: ReplyReader, limit: int) -> None:
        self._live = live
        self._reader = reader
        self._limit = limit
        self._body = bytearray()
        self._size = 0
        live.recorder.streaming = False

    def took(self, data: bytes, came: float, accepted: float) -> None:  # noqa: ARG002
        """Keep what came, unless it is too much."""
        self._size += len(data)
        if self._size <= self._limit:
            self._body += data
        else:
            self._body.clear()

    def ended(self, *, whole: bool) -> None:
        """Read it, if it is all there."""
        with guard("proxy.document"):
            if whole and self._body:
                try:
                    item: Any = json.loads(self._body)
                except (ValueError, RecursionError):
                    self._reader.reply.malformed += 1
                else:
                    self._reader.whole(item)
            self._body.clear()
            _finish(self._live, self._reader, whole=whole)


class Unread:
    """A body that nobody looks into; only its end is known."""

    def __init__(self, live: LiveRequest, reader: ReplyReader) -> None:
        self._live = live
        self._reader = reader

    def took(self, data: bytes, came: float, accepted: float) -> None:
        """Nothing is read."""

    def ended(self, *, whole: bool) -> None:
        """A body that came to its end is complete, for all that is known."""
        with guard("proxy.unread"):
            _finish(self._live, self._reader, whole=whole)


def _finish(live: LiveRequest, reader: ReplyReader, *, whole: bool) -> None:
    reply = reader.reply
    reply.end_record = reply.end_record or (whole and reply.error is None)
    reader.finish(live, exhausted=False)


class Unpacked:
    """A compressed body, unpacked for the eyes of *inner*, up to a limit."""

    def __init__(self, live: LiveRequest, inner: Reading, window: int, limit: int) -> None:
        self._live = live
        self._inner = inner
        self._unpack: Callable[[bytes, int], bytes] | None = zlib.decompressobj(window).decompress
        self._left = limit

    def took(self, data: bytes, came: float, accepted: float) -> None:
        """Unpack a piece, and have it read."""
        if self._unpack is None:
            return
        try:
            plain = self._unpack(data, self._left + 1)
        except zlib.error:
            plain, self._left = b"", -1
        self._left -= len(plain)
        if plain:
            self._inner.took(plain, came, accepted)
        if self._left < 0:
            self._unpack = None

    def ended(self, *, whole: bool) -> None:
        """What was not read to its end is complete, for all that is known."""
        self._inner.ended(whole=whole)
        if self._unpack is None and whole:
            self._live.recorder.ending(end_record=True)
