"""Bytes to records: the event-stream standard, NDJSON, whole documents, limits."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from otel_llm.replies.wire import (
    DONE,
    MALFORMED,
    DocumentRecords,
    NdjsonRecords,
    Record,
    Records,
    SniffedRecords,
    SseRecords,
    parsed,
    records_for,
)

KINDS = [SseRecords, NdjsonRecords, DocumentRecords, SniffedRecords]


def read(records: Records, *reads: bytes) -> list[Record]:
    """All records of a stream that came in these reads."""
    found = [record for data in reads for record in records.feed(data)]
    return found + records.end()


def sse(*reads: bytes) -> list[Record]:
    """The events of an event stream."""
    return read(SseRecords(), *reads)


def ndjson(*reads: bytes) -> list[Record]:
    """The lines of an NDJSON stream."""
    return read(NdjsonRecords(), *reads)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b"data: a\n\n", [Record("a")], id="LF"),
        pytest.param(b"data: a\r\n\r\n", [Record("a")], id="CRLF"),
        pytest.param(b"data: a\r\r", [Record("a")], id="CR"),
        pytest.param(b"data: a\r\n\n", [Record("a")], id="mixed"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Record("a")], id="byte-order mark"),
        pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", [], id="a second mark is content"),
        pytest.param(b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [Record("a")], id="a late mark too"),
        pytest.param(b": note\n\ndata: a\n: note\n\n", [Record("a")], id="comments"),
        pytest.param(b"data\n\n", [Record("")], id="no colon"),
        pytest.param(b"data\ndata\n\n", [Record("\n")], id="no colon, twice"),
        pytest.param(b"data:\n\n", [Record("")], id="empty data"),
        pytest.param(b"data:a\n\n", [Record("a")], id="no space"),
        pytest.param(b"data:  a \n\n", [Record(" a ")], id="one space is removed"),
        pytest.param(b"data:\ta\n\n", [Record("\ta")], id="a tab is not"),
        pytest.param(b" data: a\n\n", [], id="a field name with a space"),
        pytest.param(b"Data: a\n\n", [], id="field names have one case"),
        pytest.param(b"data: a\ndata: b\n\n", [Record("a\nb")], id="several lines"),
        pytest.param(b"data: a\n\n\n\n", [Record("a")], id="blank lines"),
        pytest.param(b"data: a: b\n\n", [Record("a: b")], id="the first colon counts"),
        pytest.param(b"event: e\ndata: a\n\n", [Record("a", "e")], id="event"),
        pytest.param(b"data: a\nevent:e\nevent: f\n\n", [Record("a", "f")], id="the last event"),
        pytest.param(b"event: e\nevent\ndata: a\n\n", [Record("a")], id="an empty event"),
        pytest.param(b"event: e\n\ndata: a\n\n", [Record("a")], id="an event without data"),
        pytest.param(b"id: 1\nretry: 5\ndata: a\n\n", [Record("a")], id="id and retry"),
        pytest.param(b"data: a\xff\n\n", [Record("a\ufffd")], id="not UTF-8"),
        pytest.param(b"data: a\xe2\x80\xa8b\n\n", [Record("a\u2028b")], id="other line separators"),
        pytest.param(
            b"data: a\x0bb\x0c\x1c\x85\n\n", [Record("a\x0bb\x0c\x1c\ufffd")], id="control"
        ),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_event_streams_follow_the_standard(stream: bytes, expected: list[Record]) -> None:
    """Each rule of the standard's parser, in one read and byte by byte."""
    assert expected == sse(stream)
    assert expected == sse(*(bytes([each]) for each in stream))


def test_an_event_ends_with_its_blank_line() -> None:
    """It is given in the read that ends it, also when that end is half a CRLF."""
    records = SseRecords()
    assert records.feed(b"data: a\r\n") == []
    assert [Record("a")] == records.feed(b"\r")
    assert records.feed(b"\n") == []
    assert [Record("b")] == records.feed(b"data: b\n\n")


def test_an_empty_read_does_not_cut_a_line_end() -> None:
    """CR, a read of nothing, LF is one line end."""
    assert [Record("a\nb")] == sse(b"data: a\r", b"", b"\ndata: b\n\n")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(b'data: {"a": 1}\n', [Record('{"a": 1}')], id="no blank line"),
        pytest.param(b'event: e\ndata: {"a":\ndata: 1}', [Record('{"a":\n1}', "e")], id="no end"),
        pytest.param(b"data: [DONE]", [Record("[DONE]")], id="the end mark"),
        pytest.param(b'data: {"a": ', [], id="cut"),
        pytest.param(b"data: text\n", [], id="not JSON"),
        pytest.param(b"data:\n", [], id="empty"),
        pytest.param(b"dat", [], id="cut in the field's name"),
        pytest.param(b"\xef\xbb", [], id="cut in the byte-order mark"),
    ],
)
def test_a_cut_event_counts_if_it_is_complete_json(tail: bytes, expected: list[Record]) -> None:
    """Servers get cut; half an event is dropped, a whole one without its blank line is not."""
    assert expected == sse(tail)


def test_the_end_is_told_once() -> None:
    """A second end has nothing left to say."""
    records = SseRecords()
    records.feed(b"data: 1\n")
    assert [Record("1")] == records.end()
    assert records.end() == []


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b'{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}'], id="lines"),
        pytest.param(b'{"a":1}\r\n\r\n  \n{"b":2}\n', ['{"a":1}', '{"b":2}'], id="blank lines"),
        pytest.param(b'\xef\xbb\xbf{"a":1}\n', ['{"a":1}'], id="byte-order mark"),
        pytest.param(b'{"a":1}\n{"b":2}', ['{"a":1}', '{"b":2}'], id="no last line end"),
        pytest.param(b'{"a":1}\n{"b":', ['{"a":1}'], id="cut"),
        pytest.param(b'"\xe9\x9b\xaa\xff"\n', ['"雪\ufffd"'], id="not UTF-8"),
        pytest.param(b'"a\xe2\x80\xa8b"\n', ['"a\u2028b"'], id="other line separators"),
        pytest.param(b"oops\n", ["oops"], id="not JSON"),
    ],
)
def test_ndjson_is_one_record_per_line(stream: bytes, expected: list[str]) -> None:
    """Lines as they are, blank ones left out, in one read and byte by byte."""
    assert [Record(each) for each in expected] == ndjson(stream)
    assert [Record(each) for each in expected] == ndjson(*(bytes([each]) for each in stream))


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/event-stream", SseRecords),
        ("Text/Event-Stream; charset=utf-8", SseRecords),
        ("application/x-ndjson", NdjsonRecords),
        ("application/jsonl", NdjsonRecords),
        ("application/json-lines ;charset=utf-8", NdjsonRecords),
        ("application/stream+json", NdjsonRecords),
        ("application/json", DocumentRecords),
        ("application/problem+json", DocumentRecords),
        ("text/plain", SniffedRecords),
        ("", SniffedRecords),
        (None, SniffedRecords),
    ],
)
def test_the_content_type_picks_the_parser(content_type: str | None, kind: type) -> None:
    """Parameters and case do not matter; what is unknown is looked at."""
    assert kind is type(records_for(content_type))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b'{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}'], id="objects"),
        pytest.param(b"[1]\n[2]\n", ["[1]", "[2]"], id="arrays"),
        pytest.param(b' \r\n\n{"a":1}\n', ['{"a":1}'], id="blanks first"),
        pytest.param(b'\xef\xbb\xbf\n{"a":1}\n', ['{"a":1}'], id="byte-order mark first"),
        pytest.param(b"data: {}\n\n", ["{}"], id="data"),
        pytest.param(b"\xef\xbb\xbfdata: {}\n\n", ["{}"], id="byte-order mark, then data"),
        pytest.param(b"\n\n: note\n\ndata: {}\n\n", ["{}"], id="a comment"),
        pytest.param(b"\n" * 2000 + b"data: {}\n\n", ["{}"], id="blanks without end"),
        pytest.param(b" " * 2000 + b"{}\n", [], id="an object far too late"),
        pytest.param(b"<html>", [], id="neither"),
        pytest.param(b" \n", [], id="blank"),
    ],
)
def test_an_unknown_body_shows_what_it_is(stream: bytes, expected: list[str]) -> None:
    """The first byte that is not blank tells NDJSON and event streams apart."""
    assert expected == [each.data for each in read(records_for(None), stream)]
    bytewise = read(records_for(None), *(bytes([each]) for each in stream))
    assert expected == [each.data for each in bytewise]


def test_a_document_is_one_record_at_its_end() -> None:
    """Line ends inside it mean nothing, and a byte-order mark is not part of it."""
    records = DocumentRecords()
    assert records.feed(b'\xef\xbb\xbf{\n\n "a":') == []
    assert records.feed(b" 1\n}\n") == []
    (record,) = records.end()
    assert parsed(record) == {"a": 1}


def test_a_cut_document_is_malformed() -> None:
    """It is given all the same, so that the cut shows."""
    (record,) = read(DocumentRecords(), b'{"a":')
    assert parsed(record) is MALFORMED


def test_a_blank_document_is_none() -> None:
    """A reply without a body has no record."""
    assert read(DocumentRecords(), b" \n") == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("[DONE]", DONE),
        (" [DONE] ", DONE),
        ("", None),
        (" \n", None),
        ("null", None),
        (": STILL WORKING", MALFORMED),
        ('{"a":', MALFORMED),
        ("[" * 200_000, MALFORMED),
        ("1" * 10_000, MALFORMED),
        ("\ufeff{}", MALFORMED),
        ("{}\u2028", MALFORMED),
    ],
)
def test_a_record_is_json_or_something_known(data: str, expected: object) -> None:
    """The end mark, silence and noise are told apart, and nothing raises."""
    assert expected == parsed(Record(data))


LIMIT = 20


@pytest.mark.parametrize(
    "long",
    [
        pytest.param(b"data: 0123456789abcdef\n\n", id="one line"),
        pytest.param(b"data: 01234\ndata: 01234\ndata: 01234\ndata: 01234\n\n", id="many lines"),
        pytest.param(b"data: 1\nevent: 0123456789abcdef\ndata: 2\n\n", id="event"),
    ],
)
def test_a_long_event_is_skipped_to_its_end(long: bytes) -> None:
    """It is counted once, nothing of it remains, and its neighbours are kept."""
    for step in (1, len(long)):
        records = SseRecords(LIMIT)
        found = records.feed(b"data: a\n\n")
        for start in range(0, len(long), step):
            found += records.feed(long[start : start + step])
        assert [Record("a"), Record("b")] == found + records.feed(b"data: b\n\n")
        assert records.skipped == 1


def test_a_long_line_is_skipped_to_its_end() -> None:
    """The same for NDJSON."""
    records = NdjsonRecords(LIMIT)
    assert [Record("1"), Record("2")] == read(records, b"1\n" + b"3" * 15, b"3" * 15, b"3\n2\n")
    assert records.skipped == 1


def test_a_long_event_is_not_completed_by_the_end() -> None:
    """The limit holds for the lines together, also when the last of them has no end."""
    records = SseRecords(LIMIT)
    assert read(records, b'data: {"a":       \n', b"data: 1}") == []
    assert records.skipped == 1


def test_the_limit_itself_is_allowed() -> None:
    """A line of exactly the limit is kept."""
    records = NdjsonRecords(LIMIT)
    assert [Record("1" * LIMIT)] == read(records, b"1" * LIMIT + b"\n")
    assert records.skipped == 0


def test_comments_do_not_add_up() -> None:
    """A stream kept alive for days, without one blank line, still has its event."""
    records = SseRecords(LIMIT)
    assert [Record("a")] == read(records, *[b": keep-alive\n"] * 100, b"data: a\n\n")
    assert records.skipped == 0


def test_a_long_document_is_skipped() -> None:
    """A body over the limit has no record."""
    records = DocumentRecords(LIMIT)
    assert read(records, b"1" * 15, b"1" * 15, b"1") == []
    assert records.skipped == 1


def test_a_sniffed_stream_tells_what_was_skipped() -> None:
    """The count is the chosen parser's, 0 before there is one."""
    records = SniffedRecords(LIMIT)
    assert records.skipped == 0
    assert [Record("[1]")] == read(records, b"[" * 30, b"\n[1]\n")
    assert records.skipped == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece", [b"x" * 65_536, b"data:a\n" * 9_362], ids=["line", "event"])
def test_memory_has_an_end(kind: Callable[[int], Records], piece: bytes) -> None:
    """A record without an end, of one line or of many, is not kept."""
    records = kind(4096)
    tracemalloc.start()
    try:
        for _ in range(16):
            records.feed(piece)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_costs_what_it_brings(kind: Callable[[], Records]) -> None:
    """Small reads after 8 MiB of one line are cheap: what is there already is not copied again."""
    records = kind()
    records.feed(b"data: " + b"x" * (8 << 20))
    before = time.process_time()
    for _ in range(10_000):
        records.feed(b"x")
    assert time.process_time() - before < 2
