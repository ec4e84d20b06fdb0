"""What holds for every stream: cuts do not matter, nothing raises, the standard is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm.replies.wire import (
    DocumentRecords,
    NdjsonRecords,
    Record,
    Records,
    SniffedRecords,
    SseRecords,
    parsed,
    records_for,
)

PIECES = [
    b"data:", b"data: ", b"data", b"event:", b"event: e", b"event", b"id: 7", b"retry: 5", b":",
    b" ", b"\t", b"\r", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"\xef", b"\xbb",
    b'{"a":1}', b"[DONE]", b'{"a":', b"1}", b"12", "雪".encode(), "🦊".encode()[:2], b"\xff",
    b"\x00", "\u2028\x85".encode(), b"x" * 30,
]  # fmt: skip
STREAMS = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join) | st.binary(max_size=60)
CUTS = st.lists(st.integers(0, 200), max_size=20)
TYPES = st.sampled_from(["text/event-stream", "application/jsonl", "application/json", None])
KINDS = st.sampled_from([SseRecords, NdjsonRecords, DocumentRecords, SniffedRecords])


def read(records: Records, reads: list[bytes]) -> tuple[list[Record], int]:
    """All records of a stream that came in these reads, and how many were skipped."""
    found = [record for data in reads for record in records.feed(data)]
    return found + records.end(), records.skipped


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    """A stream cut into reads, some of them empty."""
    places = [0, *sorted(min(each, len(stream)) for each in at), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


def lines_of(stream: bytes) -> tuple[list[str], str]:
    """The ended lines of a stream, and what follows the last of them."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    *lines, tail = re.split(r"\r\n|\r|\n", text)
    return lines, tail


def is_complete(data: str) -> bool:
    """JSON that says something, or the end mark."""
    try:
        return data.strip(" \t\n") == "[DONE]" or json.loads(data) is not None
    except ValueError:
        return False


class Standard:
    """The standard's "interpreting an event stream", step by step, on text."""

    def __init__(self) -> None:
        self.events: list[Record] = []
        self.data = self.type = ""

    def line(self, line: str) -> None:
        if line == "":
            self.dispatch()
        elif line.startswith(":"):
            pass
        elif ":" in line:
            colon = line.index(":")
            value = line[colon + 1 :]
            self.field(line[:colon], value.removeprefix(" "))
        else:
            self.field(line, "")

    def field(self, name: str, value: str) -> None:
        if name == "event":
            self.type = value
        elif name == "data":
            self.data = self.data + value + "\n"

    def dispatch(self) -> None:
        if self.data != "":
            self.events.append(Record(self.data[:-1], self.type or None))
        self.data = self.type = ""


def by_the_standard(stream: bytes) -> list[Record]:
    """What a slow parser makes of it, with the one exception for cut streams."""
    lines, tail = lines_of(stream)
    standard = Standard()
    for line in lines:
        standard.line(line)
    if tail:
        standard.line(tail)
    if is_complete(standard.data[:-1]):
        standard.dispatch()
    return standard.events


@given(STREAMS, CUTS)
def test_event_streams_are_what_the_standard_says(stream: bytes, at: list[int]) -> None:
    """Any bytes in any reads give the events that a slow parser finds."""
    assert (by_the_standard(stream), 0) == read(SseRecords(), cut(stream, at))


@given(STREAMS, CUTS)
def test_ndjson_is_its_lines(stream: bytes, at: list[int]) -> None:
    """Any bytes in any reads give the lines that are not blank, and the tail if it is JSON."""
    lines, tail = lines_of(stream)
    lines += [tail] if is_complete(tail) else []
    expected = [Record(line) for line in lines if line.strip(" \t")]
    assert (expected, 0) == read(NdjsonRecords(), cut(stream, at))


@given(KINDS, st.sampled_from([4, 8, 16, 32, 1000]), STREAMS, CUTS)
def test_cuts_do_not_matter(
    kind: Callable[[int], Records], limit: int, stream: bytes, at: list[int]
) -> None:
    """Whatever the limit, one read, any reads and single bytes give the same."""
    whole = read(kind(limit), [stream])
    assert whole == read(kind(limit), cut(stream, at))
    assert whole == read(kind(limit), [bytes([each]) for each in stream])


@given(KINDS, st.integers(0, 40), STREAMS)
def test_a_limit_only_takes_away(kind: Callable[[int], Records], limit: int, stream: bytes) -> None:
    """A small limit leaves a part of the records, in order, none longer, and says if any went."""
    everything, _ = read(kind(10_000), [stream])
    found, skipped = read(kind(limit), [stream])
    rest = iter(everything)
    assert all(record in rest for record in found)
    assert all(len(record.data) <= limit for record in found)
    assert skipped > 0 or found == everything


@given(TYPES | st.text(max_size=30), st.lists(st.binary(max_size=30), max_size=20))
def test_nothing_raises(content_type: str | None, reads: list[bytes]) -> None:
    """Any type and any bytes, also after the end."""
    records = records_for(content_type)
    for record in read(records, reads)[0] + read(records, reads)[0]:
        parsed(record)


@given(st.text(max_size=40), st.sampled_from(["", "event", "null"]))
def test_any_text_may_be_a_record(data: str, event: str) -> None:
    """Parsing a record never raises."""
    parsed(Record(data, event))


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@settings(max_examples=50)
@given(values=st.lists(st.dictionaries(st.text(), st.integers() | st.text())), at=CUTS)
def test_what_was_sent_is_what_is_read(end: bytes, values: list[object], at: list[int]) -> None:
    """JSON values come through any framing, whatever they hold and wherever they are cut."""
    payloads = [json.dumps(each, ensure_ascii=False).encode("utf-8", "replace") for each in values]
    values = [json.loads(each) for each in payloads]
    events = b"".join(b"data: " + each + end + end for each in payloads)
    lines = b"".join(each + end for each in payloads)
    for records, stream in ((SseRecords(), events), (NdjsonRecords(), lines)):
        found, _ = read(records, cut(stream, at))
        assert values == [parsed(each) for each in found]
