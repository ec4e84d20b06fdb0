"""Bytes of a streamed reply, cut anywhere, to whole records: SSE, NDJSON, one JSON document.

Server-sent events are read as the standard says: https://html.spec.whatwg.org/#parsing-an-event-stream
with one exception. Model servers get cut, so a record that the stream's end leaves unterminated
still counts if it is complete JSON or the `[DONE]` that ends a stream.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import NamedTuple, Protocol

LARGEST_RECORD = 16 * 1024 * 1024
"""Longer records, in bytes, are skipped: nothing that an engine sends is that long."""

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n" + _BOM
_SNIFFED = 1024
_LINE_TYPES = frozenset(
    f"application/{name}"
    for name in ("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "json-lines", "stream+json")
)


class Record(NamedTuple):
    """One event's data, its lines joined by a newline, or one NDJSON line; and the event's type."""

    data: str
    event: str | None = None


class Records(Protocol):
    """Reads in, records out. Nothing raises; bytes that are not UTF-8 become U+FFFD."""

    @property
    def skipped(self) -> int:
        """How many records were too long and are left out."""

    def feed(self, data: bytes) -> list[Record]:
        """The records that this read completes, in order."""

    def end(self) -> list[Record]:
        """The record that the end of the stream completes, if there is one."""


class Special(Enum):
    """What a record can be besides a JSON value."""

    DONE = "[DONE]"
    MALFORMED = "malformed"


DONE = Special.DONE
"""The record that ends a stream of the OpenAI kind."""

MALFORMED = Special.MALFORMED
"""The record is not JSON."""


def parsed(record: Record) -> object | None:
    """The JSON value in a record, `DONE`, `MALFORMED`, or None where the record says nothing."""
    text = record.data.strip(" \t\r\n")  # JSON's blanks; others are noise
    if not text:
        return None
    if text == DONE.value:
        return DONE
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return MALFORMED
    return value


def records_for(content_type: str | None) -> Records:
    """The parser for a body of this type; without a known type, the first bytes decide."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return SseRecords()
    if kind in _LINE_TYPES:
        return NdjsonRecords()
    if kind == "application/json" or kind.endswith("+json"):
        return DocumentRecords()
    return SniffedRecords()


class _LineRecords:
    """Lines, whichever way they end and wherever they are cut. `_take` makes records of them."""

    def __init__(self, limit: int = LARGEST_RECORD) -> None:
        self.skipped = 0
        self._limit = limit
        self._line = bytearray()  # begun and not ended
        self._data = bytearray()  # lines that the record is made of so far
        self._at_start = True
        self._after_cr = False
        self._skipping = False

    def feed(self, data: bytes) -> list[Record]:
        """The records that this read completes, in order."""
        if self._at_start or self._after_cr:
            data = self._trimmed(data)
        if not data:
            return []
        lines = data.splitlines()
        self._after_cr = data[-1] == 0x0D
        begun = b"" if self._after_cr or data[-1] == 0x0A else lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        found = []
        for line in lines:
            if len(self._data) + len(line) > self._limit:
                self._skip()
            record = self._take(line)
            if record is not None:
                found.append(record)
        if begun:
            self._begin(begun)
        return found

    def end(self) -> list[Record]:
        """The record that the end of the stream completes, if there is one."""
        line, self._line = bytes(self._line), bytearray()
        found = (self._take(line), self._take(b""))
        return [record for record in found if record is not None and _is_complete(record)]

    def _trimmed(self, data: bytes) -> bytes:
        """A read without the stream's byte-order mark, and without the LF of a CRLF cut in two."""
        if self._at_start:
            data = bytes(self._line) + data
            self._line.clear()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._line += data
                return b""
            self._at_start = False
            data = data.removeprefix(_BOM)
        elif data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        return data

    def _begin(self, piece: bytes) -> None:
        self._line += piece
        if len(self._data) + len(self._line) > self._limit:
            self._skip()
            del self._line[1:]  # the rest tells no more than that the line is not blank

    def _skip(self) -> None:
        if not self._skipping:
            self._skipping = True
            self.skipped += 1
            self._data.clear()

    def _take(self, line: bytes) -> Record | None:
        """What a whole line completes."""
        raise NotImplementedError


class SseRecords(_LineRecords):
    """Server-sent events; an event without data is none."""

    def __init__(self, limit: int = LARGEST_RECORD) -> None:
        super().__init__(limit)
        self._event = b""

    def _take(self, line: bytes) -> Record | None:
        if not line:
            return self._dispatched()
        if self._skipping:
            return None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data += value.removeprefix(b" ")
            self._data += b"\n"
        elif field == b"event":
            self._event = value.removeprefix(b" ")
        return None

    def _dispatched(self) -> Record | None:
        data, event = self._data, self._event
        self._data, self._event, self._skipping = bytearray(), b"", False
        if not data:
            return None
        return Record(_text(data[:-1]), _text(event) if event else None)


class NdjsonRecords(_LineRecords):
    """One JSON value per line; blank lines are none."""

    def _take(self, line: bytes) -> Record | None:
        skipping, self._skipping = self._skipping, False
        return None if skipping or not line.strip(b" \t") else Record(_text(line))


class DocumentRecords:
    """A body that is one JSON document, however many lines it has."""

    def __init__(self, limit: int = LARGEST_RECORD) -> None:
        self.skipped = 0
        self._limit = limit
        self._body = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        """Nothing yet."""
        if not self.skipped:
            self._body += data
            if len(self._body) > self._limit:
                self.skipped = 1
                self._body.clear()
        return []

    def end(self) -> list[Record]:
        """The document, complete or not, unless the body was blank."""
        body, self._body = self._body.removeprefix(_BOM), bytearray()
        return [Record(_text(body))] if body.strip() else []


class SniffedRecords:
    """NDJSON if the first byte that is not blank opens a JSON value, server-sent events if not."""

    def __init__(self, limit: int = LARGEST_RECORD) -> None:
        self._limit = limit
        self._head = bytearray()
        self._chosen: Records | None = None

    @property
    def skipped(self) -> int:
        """How many records were too long and are left out."""
        return self._chosen.skipped if self._chosen else 0

    def feed(self, data: bytes) -> list[Record]:
        """The records that this read completes, in order."""
        if self._chosen is not None:
            return self._chosen.feed(data)
        self._head += data
        first = self._head[:_SNIFFED].lstrip(_BLANK)[:1]
        if not first and len(self._head) < _SNIFFED:
            return []
        kind = NdjsonRecords if bytes(first) in (b"{", b"[") else SseRecords
        self._chosen = kind(self._limit)
        head, self._head = bytes(self._head), bytearray()
        return self._chosen.feed(head)

    def end(self) -> list[Record]:
        """The record that the end of the stream completes, if there is one."""
        return self._chosen.end() if self._chosen is not None else []


def _is_complete(record: Record) -> bool:
    value = parsed(record)
    return value is not None and value is not MALFORMED


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")
