"""Field cases of kind FRM: framing and decoding of streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_llm.replies.wire import DONE, MALFORMED, Record, Records, parsed, records_for

DATA = Path(__file__).parents[1] / "cases" / "data"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"


def reads_of(name: str) -> list[bytes]:
    """The reads of a case, as they came."""
    return [bytes.fromhex(each) for each in json.loads((DATA / name).read_text())["reads_hex"]]


def recut(reads: list[bytes], size: int) -> list[bytes]:
    """The same bytes in reads of this size; 0 leaves them as they came."""
    stream = b"".join(reads)
    return [stream[at : at + size] for at in range(0, len(stream), size)] if size else reads


def read(records: Records, reads: list[bytes]) -> list[Record]:
    """All records of a stream."""
    return [record for data in reads for record in records.feed(data)] + records.end()


def values(content_type: str | None, reads: list[bytes]) -> list[Any]:
    """What all records of a stream say."""
    return [parsed(record) for record in read(records_for(content_type), reads)]


def choices(found: list[Any]) -> list[Any]:
    """The choices of the chunks among these."""
    return [choice for each in found if isinstance(each, dict) for choice in each["choices"]]


def content(found: list[Any]) -> list[str]:
    """The pieces of text of a chat completion."""
    return [each["delta"]["content"] for each in choices(found) if each["delta"].get("content")]


SIZES = pytest.mark.parametrize("size", [0, 1, 2, 7, 4096])
TYPES = pytest.mark.parametrize("content_type", [SSE, None], ids=["declared", "sniffed"])


@SIZES
@TYPES
def test_a_character_cut_by_a_read(size: int, content_type: str | None) -> None:
    """D-FRM-01: characters of 2, 3 and 4 bytes come through reads that end inside them."""
    found = values(content_type, recut(reads_of("D-FRM-01.reads.json"), size))
    assert content(found) == ["café 雪 🦊"]
    assert choices(found)[-1]["finish_reason"] == "stop"
    assert DONE is found[-1]


@SIZES
@TYPES
def test_noise_between_good_events(size: int, content_type: str | None) -> None:
    """D-FRM-02: two events are malformed; a comment and an empty event are not."""
    found = values(content_type, recut([(DATA / "D-FRM-02.sse").read_bytes()], size))
    assert "".join(content(found)) == "One two"
    assert choices(found)[-1]["finish_reason"] == "stop"
    assert found.count(MALFORMED) == 2
    assert found.count(None) == 1
    assert DONE is found[-1]


def test_a_heartbeat_keeps_its_type() -> None:
    """D-FRM-02: an event's type tells noise from a chunk, and does not last."""
    found = read(records_for(SSE), [(DATA / "D-FRM-02.sse").read_bytes()])
    assert [record.event for record in found] == [None, None, None, "heartbeat", None, None]


@SIZES
@pytest.mark.parametrize("content_type", [NDJSON, None], ids=["declared", "sniffed"])
def test_lines_that_do_not_line_up_with_reads(size: int, content_type: str | None) -> None:
    """D-FRM-03: halves, pairs and a cut CRLF; the last line needs no end."""
    found = values(content_type, recut(reads_of("D-FRM-03-a.reads.json"), size))
    assert [each["done"] for each in found] == [False, False, True]
    assert "".join(each["message"]["content"] for each in found) == "ab"
    assert (found[-1]["eval_count"], found[-1]["done_reason"]) == (2, "stop")


@SIZES
@TYPES
def test_a_cut_crlf_is_no_blank_line(size: int, content_type: str | None) -> None:
    """D-FRM-03: an event stream with CRLF, cut between CR and LF."""
    found = values(content_type, recut(reads_of("D-FRM-03-b.reads.json"), size))
    assert content(found) == ["x", "y"]
    assert choices(found)[-1]["finish_reason"] == "stop"
    assert (len(found), found[-1]) == (3, DONE)


@SIZES
@TYPES
@pytest.mark.parametrize("colon", [b"data:", b"data: "], ids=["no space", "space"])
def test_data_without_a_space(size: int, content_type: str | None, colon: bytes) -> None:
    """D-FRM-04: a TGI stream says the same with and without the space."""
    stream = (DATA / "D-FRM-04.sse").read_bytes().replace(b"data:", colon)
    found = values(content_type, recut([stream], size))
    tokens = [each["token"] for each in found]
    assert len(tokens) == 3
    assert "".join(each["text"] for each in tokens if not each["special"]) == "Blue sky"
    assert found[-1]["generated_text"] == "Blue sky"
    assert found[-1]["details"]["generated_tokens"] == 3
    assert found[-1]["details"]["finish_reason"] == "eos_token"


def test_only_one_space_is_removed() -> None:
    """D-FRM-04: a second space belongs to the data."""
    stream = (DATA / "D-FRM-04.sse").read_bytes().replace(b"data:", b"data:  ")
    found = read(records_for(SSE), [stream])
    assert [record.data.startswith(' {"index"') for record in found] == [True] * 3
