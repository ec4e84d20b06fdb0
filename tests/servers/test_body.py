"""Reading a body ahead of the application, which gets every message of it unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_llm.servers.body import LARGEST_BODY, BodyAhead
from tests.fakes.asgi import Connection, Message, body

JSON = {"content-type": "application/json"}


async def read(
    messages: list[Message], headers: dict[str, str] = JSON, **limit: int
) -> tuple[dict[str, Any], list[Message], int]:
    """What was read, the messages that the application then gets, and how many came ahead."""
    connection = Connection(messages)
    ahead = BodyAhead(connection.receive)
    found = await ahead.read(headers, **limit)
    left = len(connection.incoming)
    return found, [await ahead.receive() for _ in messages], len(messages) - left


def padded(size: int) -> bytes:
    """A JSON object of exactly *size* bytes."""
    head = b'{"model": "tiny", "prompt": "'
    return head + b"x" * (size - len(head) - 2) + b'"}'


class TestRead:
    """What is understood of a body."""

    @pytest.mark.parametrize(
        "kind",
        ["application/json", "Application/JSON; charset=utf-8", "application/problem+json", ""],
    )
    async def test_json(self, kind: str) -> None:
        """JSON by its type, or by lack of one."""
        found, _, _ = await read(body(b'{"model": "tiny"}'), {"content-type": kind})
        assert found == {"model": "tiny"}

    async def test_without_a_content_type(self) -> None:
        """A missing type is no obstacle."""
        assert (await read(body(b'{"a": 1}'), {}))[0] == {"a": 1}

    async def test_in_parts(self) -> None:
        """Cut anywhere, also inside a character."""
        whole = json.dumps({"model": "caf\u00e9"}, ensure_ascii=False).encode()
        parts = body(*(whole[at : at + 1] for at in range(len(whole))))
        assert (await read(parts))[0] == {"model": "caf\u00e9"}

    @pytest.mark.parametrize(
        "data",
        [b"", b"[1]", b'"text"', b"{", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000],
    )
    async def test_what_is_no_json_object(self, data: bytes) -> None:
        """Anything else says nothing, and raises nothing."""
        assert (await read(body(data)))[0] == {}

    async def test_exactly_the_limit(self) -> None:
        """One mebibyte is still read."""
        found, _, _ = await read(body(padded(LARGEST_BODY)))
        assert (1024 * 1024, found["model"]) == (LARGEST_BODY, "tiny")


class TestUntouched:
    """Bodies that are not read."""

    @pytest.mark.parametrize(
        "kind", ["multipart/form-data; boundary=x", "text/plain", "application/x-ndjson"]
    )
    async def test_other_types(self, kind: str) -> None:
        """Not one message is taken ahead of the application."""
        found, _, ahead = await read(body(b'{"model": "tiny"}'), {"content-type": kind})
        assert (found, ahead) == ({}, 0)

    async def test_declared_too_long(self) -> None:
        """The length in the header is enough to leave it alone."""
        declared = JSON | {"content-length": str(LARGEST_BODY + 1)}
        found, _, ahead = await read(body(b"{}"), declared)
        assert (found, ahead) == ({}, 0)

    @pytest.mark.parametrize("length", ["0", "-5", "many", "\u0661", "9" * 30, ""])
    async def test_nonsense_for_a_length(self, length: str) -> None:
        """What is not a plain number is not a length; the body decides."""
        found, _, _ = await read(body(b'{"a": 1}'), JSON | {"content-length": length})
        assert found == {"a": 1}

    async def test_one_byte_too_long(self) -> None:
        """It is given up, without a model."""
        assert (await read(body(padded(LARGEST_BODY + 1))))[0] == {}

    async def test_reading_stops_at_the_limit(self) -> None:
        """The rest of a long upload is not gathered in memory."""
        found, _, ahead = await read(body(*[b"x" * 10] * 20), limit=45)
        assert (found, ahead) == ({}, 5)


class TestPassedOn:
    """What the application receives."""

    @pytest.mark.parametrize(
        "parts",
        [
            [b'{"model": "tiny"}'],
            [b'{"model"', b': "tiny"}'],
            [b'{"model": "tiny"}', b""],
            [b"", b"not json"],
            [padded(LARGEST_BODY)[:700_000], b"x" * 700_000, b"x" * 700_000],
        ],
    )
    async def test_the_same_messages(self, parts: list[bytes]) -> None:
        """The very same objects, in their order."""
        messages = body(*parts)
        _, passed, _ = await read(list(messages))
        assert [id(each) for each in messages] == [id(each) for each in passed]

    async def test_a_peer_that_leaves_while_it_sends(self) -> None:
        """The application learns of it just as it would have."""
        gone = {"type": "http.disconnect"}
        found, passed, _ = await read([body(b'{"mod', b"el")[0], gone])
        assert ({}, gone) == (found, passed[1])
