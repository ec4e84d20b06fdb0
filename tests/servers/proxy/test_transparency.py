"""What a client and an upstream see of each other is the same with the proxy and without it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm import semconv
from tests.servers.proxy.background import Pair, Script, Seen, pair
from tests.servers.proxy.builders import ASKED, CHAT, DONE, LAST, event
from tests.services import record

RECORDINGS = Path(record.__file__).parent / "recordings"
RECORDED = sorted(RECORDINGS.glob("*/*.json"))
FUZZED = max(450, settings.default.max_examples)


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    """An upstream, and the proxy before it."""
    with pair() as found:
        yield found


def same(direct: Seen, through: Seen) -> None:
    """Fail unless both ways show the same."""
    assert (direct.answer.status, direct.kept) == (through.answer.status, through.kept)
    assert direct.answer.body == through.answer.body
    assert direct.answer.whole == through.answer.whole
    assert (direct.line, direct.passed, direct.body) == (
        through.line,
        through.passed,
        through.body,
    )


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recorded_exchange(both: Pair, path: Path) -> None:
    """An answer of a real server arrives byte for byte, with every header."""
    meta = json.loads(path.read_text())
    if "reads" in meta:
        reads = [each for each in record.reads(path.stem, path.parent) if each]
    else:
        reads = [record.load(path.stem, path.parent).body]
    same(*both.exchange(_replayed(meta, reads), _asked(meta["request"])))


def _replayed(meta: dict[str, Any], reads: list[bytes]) -> Script:
    headers = meta["headers"]
    head = "\r\n".join(
        [f"HTTP/1.1 {meta['status']} X", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    ).encode("latin-1")
    if headers.get("transfer-encoding") == "chunked":
        chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in reads]
        return Script([head, *chunks, b"0\r\n\r\n"])
    return Script([head, *reads], hangs_up="content-length" not in headers)


def _asked(asked: dict[str, Any]) -> bytes:
    body = asked["body"]
    if body is None:
        return b"GET %b HTTP/1.1\r\nhost: model.test\r\n\r\n" % asked["path"].encode()
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = f"POST {asked['path']} HTTP/1.1\r\nhost: model.test\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


_NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.!~", min_size=1, max_size=12)
_VALUES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f")
    .filter(lambda c: not "\x80" <= c <= "\x9f"),
    max_size=20,
)  # fmt: skip
_FIELDS = st.lists(st.tuples(_NAMES.map("x-{}".format), _VALUES), max_size=4)
_RECORDS = st.sampled_from([event(), event("snow \u2744"), LAST, DONE, b": ping\n\n", b"\r\n"])
_PIECES = st.lists(st.one_of(st.binary(min_size=1, max_size=200), _RECORDS), max_size=8)
_TYPES = st.sampled_from(
    ["text/event-stream", "application/x-ndjson", "application/json", "text/plain", "x", ""]
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """An answer of any status, type and framing, cut into packets anywhere."""
    pieces = draw(_PIECES)
    status = draw(st.sampled_from([200, 201, 206, 302, 400, 404, 418, 429, 500, 502, 503]))
    lines = [f"HTTP/1.1 {status} X", f"content-type: {draw(_TYPES)}"]
    lines += [f"{name}: {value}" for name, value in draw(_FIELDS)]
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["gzip", "deflate", "br"]))
        lines.append(f"content-encoding: {kind}")
        if kind == "gzip" and draw(st.booleans()):
            pieces = [gzip.compress(b"".join(pieces))]
    framing = draw(st.sampled_from(["chunked", "length", "close"]))
    body = b"".join(pieces)
    if framing == "chunked":
        lines.append("transfer-encoding: chunked")
        body = b"".join(b"%X\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"
    elif framing == "length":
        lines.append(f"content-length: {len(body)}")
    sent = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    packets = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b]
    return Script(packets, hangs_up=framing == "close" or draw(st.booleans()))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with any method, path and body."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]))
    path = draw(
        st.sampled_from(
            [CHAT, "/generate", "/api/chat", "/v1/models?x=%2F&y", "/a//b/../c;d=1", "/%E2%9D%84"]
        )
    )
    lines = [f"{method} {path} HTTP/1.1", "host: model.test:8000"]
    lines += [f"{name}: {value}" for name, value in draw(_FIELDS)]
    lines.append(f"content-type: {draw(st.sampled_from(['application/json', 'x/y']))}")
    body = draw(st.one_of(st.just(json.dumps(ASKED).encode()), st.binary(max_size=300)))
    if method == "GET":
        body = b""
    elif draw(st.booleans()):
        lines.append("transfer-encoding: chunked")
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    else:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@settings(max_examples=FUZZED, deadline=None)
@given(script=scripts(), sent=requests())
def test_any_exchange(both: Pair, script: Script, sent: bytes) -> None:
    """Whatever is asked and answered goes through as it is."""
    same(*both.exchange(script, sent))


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n"),
        ("GET", b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\n\r\n'),
        ("OPTIONS", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("POST", b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body(both: Pair, method: str, answer: bytes) -> None:
    """Answers that have no body are passed, and the connection goes on."""
    sent = f"{method} /v1/models HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode()
    same(*both.exchange(Script([answer]), sent))


def test_headers_that_come_twice(both: Pair) -> None:
    """Each of several headers of one name is passed, in order."""
    head = b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 0\r\n\r\n"
    direct, through = both.exchange(
        Script([head]), b"GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\nx-a: 2\r\n\r\n"
    )
    same(direct, through)
    assert through.kept[:2] == [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]


def test_only_inference_has_spans() -> None:
    """Other paths make no span, and their headers go on without one."""
    with pair() as found:
        answer = Script([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
        _, through = found.exchange(answer, b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        assert through.headers == {"host": "a"}
        found.exchange(answer, _asked({"path": CHAT, "body": ASKED}))
        assert [f"POST {CHAT}"] == [
            each.name for each in found.captured.spans if semconv.SIDE not in each.attributes
        ]
