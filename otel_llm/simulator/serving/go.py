"""How Go writes JSON, dates and complaints about JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from otel_llm.simulator.serving.http import compact

GO_JSON = "application/json; charset=utf-8"
_ESCAPED = ((b"&", rb"\u0026"), (b"<", rb"\u003c"), (b">", rb"\u003e"))
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "bool"), (int, "number"), (float, "number"), (str, "string"), (list, "array"),
    (dict, "object"),
)  # fmt: skip


def go_json(value: object) -> bytes:
    """JSON without spaces; characters that mean something in HTML are escaped."""
    body = compact(value)
    for plain, escaped in _ESCAPED:
        body = body.replace(plain, escaped)
    return body


def rfc3339(wall_ns: int) -> str:
    """An instant in nanoseconds since the Unix epoch as Go writes it: no zeros at the end."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    date = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{date}{fraction}Z"


def wrong_type(value: object, wanted: str) -> str:
    """What is said of a value of another type than *wanted*."""
    kind = next((name for type_, name in _KINDS if isinstance(value, type_)), "null")
    return f"json: cannot unmarshal {kind} into Go {wanted}"


def json_error(raw: bytes, error: ValueError) -> str:
    """What is said of bytes that are no JSON."""
    text = raw.decode("utf-8", "replace")
    at = error.pos if isinstance(error, json.JSONDecodeError) else 0
    if not text[at:].strip():
        return "unexpected EOF"
    for literal in ("null", "true", "false"):
        if text[at] == literal[0]:
            return _wrong_literal(text[at:], literal)
    return f"invalid character {_quoted(text[at])} looking for beginning of value"


def _wrong_literal(text: str, literal: str) -> str:
    given = zip(text, literal, strict=False)
    wrong = next(((have, want) for have, want in given if have != want), None)
    if wrong is None:
        return "unexpected EOF"
    place = f"in literal {literal} (expecting '{wrong[1]}')"
    return f"invalid character {_quoted(wrong[0])} {place}"


def _quoted(character: str) -> str:
    return repr(character) if character != '"' else "'\"'"
