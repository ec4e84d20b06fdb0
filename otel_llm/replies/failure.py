"""Errors inside replies. They come in many shapes; only a low-cardinality word of them is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from otel_llm.emit.values import as_count
from otel_llm.replies.fields import field, word

STREAM_ERROR = "stream_error"
"""The type of an error that names none."""
_WORD = re.compile(r"(?=.{1,64}\Z)(?!(?:[^0-9]*[0-9]){6})[A-Za-z0-9_.-]+")
"""What may be a type: more than five digits would rather be an id."""
_EMPTY_WORDS = frozenset({"error", "none", "null"})
_REFUSALS = frozenset({
    "authentication_error", "badrequesterror", "context_length_exceeded",
    "exceed_context_size_error", "insufficient_quota", "invalid_api_key", "invalid_request_error",
    "not_found_error", "notfounderror", "overloaded", "overloaded_error", "permission_error",
    "rate_limit_error", "rate_limit_exceeded", "request_too_large", "service_unavailable",
    "too_many_requests", "unavailable_error", "validation", "validation_error",
})  # fmt: skip
"""Types, in lower case, with which servers refuse a request before they begin."""


class Failure(NamedTuple):
    """An error that a reply states.

    `type` is a word for `error.type`, never a message; `status` the HTTP status that the error
    itself names, if any. It is `refused` if the request itself was turned down; whether that was
    before the first token is for the timeline to say.
    """

    type: str
    status: int | None = None
    refused: bool = False


def failure_in(item: object) -> Failure | None:
    """The error that *item* states, or None."""
    error = field(item, "error")
    is_error = "error" in (word(item, "object"), word(item, "type"))
    if not _states(error):
        if not is_error:
            return None
        error = item
    raw = [
        field(item, "error_type"),
        *(field(error, name) for name in ("type", "code", "status", "status_code")),
        *((field(item, name) for name in ("code", "status")) if error is not item else ()),
    ]
    status = next((code for each in raw if (code := _status(each)) is not None), None)
    kind = next((text for each in raw if (text := _type(each)) is not None), STREAM_ERROR)
    if status is not None:
        return Failure(kind, status, status < 500 or status == 503)
    return Failure(kind, None, kind.lower() in _REFUSALS)


def _states(error: object) -> bool:
    """Whether the `error` of an item is one: not null, empty, or a flag that is off."""
    if error is None or callable(error) or isinstance(error, bool | int | float):
        return error is True
    return bool(error) if isinstance(error, str | list | Mapping) else True


def _status(raw: object) -> int | None:
    code = as_count(raw)
    return code if code is not None and 400 <= code <= 599 else None


def _type(raw: object) -> str | None:
    """A type: a word, or a code that is a number."""
    code = None if isinstance(raw, str) else as_count(raw)
    text = str(code) if code is not None else raw
    if isinstance(text, str) and _WORD.fullmatch(text) and text.lower() not in _EMPTY_WORDS:
        return text
    return None
