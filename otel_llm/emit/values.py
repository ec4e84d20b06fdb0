"""Attribute values that every exporter accepts.

`None`, client sentinels, NaN and infinity are left out; enums become their text; half an emoji
becomes U+FFFD, since one lone surrogate makes the export of a whole batch fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import Any, TypeAlias

Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
INT64 = 2**63


def cleaned(attributes: Mapping[str, object]) -> dict[str, Value]:
    """The attributes that can be exported, as they can be exported."""
    found: dict[str, Value] = {}
    for key, raw in attributes.items():
        value = clean_value(raw)
        if value is not None:
            found[clean_text(str(key))] = value
    return found


def clean_value(raw: object) -> Value | None:
    """*raw* as an attribute value, or None if there is nothing to say."""
    if raw is None:
        return None
    if type(raw) is str:
        return clean_text(raw)
    if isinstance(raw, Enum):
        raw = raw.value
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        return clean_text(raw)
    if isinstance(raw, int):
        return int(raw) if -INT64 <= raw < INT64 else None
    if isinstance(raw, float):
        return float(raw) if isfinite(raw) else None
    if isinstance(raw, list | tuple | set | frozenset):
        return _clean_items(raw)
    if isinstance(raw, Mapping):
        return as_json(raw)
    return None


def clean_text(text: str) -> str:
    """*text* with lone surrogates replaced; everything else stays code point for code point."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def as_json(value: object) -> str | None:
    """Structured content as one JSON string, or None if it cannot be one (NaN, odd keys, depth)."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_foreign, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return clean_text(text)


def as_count(raw: object) -> int | None:
    """A token or other count as an integer: 12.0 and "12" are 12; anything unclear is None."""
    if isinstance(raw, bool) or raw is None:
        return None
    if isinstance(raw, str):
        raw = raw.strip()
        raw = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 19 else None
    if isinstance(raw, float):
        raw = int(raw) if isfinite(raw) and raw == int(raw) else None
    return int(raw) if isinstance(raw, int) and 0 <= raw < INT64 else None


def as_number(raw: object) -> float | None:
    """A finite number as a float, or None."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value if isfinite(value) else None


def as_integer(raw: object) -> int | None:
    """A whole number as an integer (7.0 is 7), or None."""
    if isinstance(raw, float) and isfinite(raw) and raw == int(raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        return None
    return raw if -INT64 <= raw < INT64 else None


def as_text(raw: object) -> str | None:
    """A non-empty text, or None for anything else (client sentinels among it)."""
    if isinstance(raw, Enum):
        raw = raw.value
    return clean_text(raw) if isinstance(raw, str) and raw else None


def as_texts(raw: object) -> tuple[str, ...] | None:
    """A text or a list with texts in it as a tuple of texts, or None if there is none."""
    items: Sequence[Any] = [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else []
    texts = tuple(text for item in items if (text := as_text(item)) is not None)
    return texts or None


def _clean_items(items: Sequence[object] | set[object] | frozenset[object]) -> Value | None:
    values = [value for item in items if (value := clean_value(item)) is not None]
    kinds = {type(value) for value in values}
    if kinds <= {int, float} and len(kinds) == 2:
        return tuple(float(value) for value in values)  # type: ignore[arg-type]
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        return as_json(values)
    return tuple(values) if values else None  # type: ignore[return-value]


def _foreign(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else f"<{type(value).__name__}>"
