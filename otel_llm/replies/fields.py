"""Looking into replies: JSON of any shape, or the objects that client libraries make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from otel_llm.emit.values import as_number

_LONGEST_NS = 366 * 86_400 * 10**9
"""No duration beyond a year is believed."""

MS = 1_000_000
"""Nanoseconds in a millisecond."""
S = 1_000_000_000
"""Nanoseconds in a second."""


_ABSENT = object()


def field(item: object, name: str) -> Any:
    """The entry or attribute *name* of *item*, or None; never raises."""
    if type(item) is dict:
        return item.get(name)
    if item is None:
        return None
    found = _look_up(item, name)
    return None if found is _ABSENT else found


def plain(item: Any) -> Any:
    """*item* as a dict if it is a model object of a client library, else *item* itself.

    Where many fields are read of one object, this is several times as fast as `field` for each.
    """
    if type(item) is dict or item is None:
        return item
    try:
        own, extra = item.__dict__, item.__pydantic_extra__
    except Exception:  # noqa: BLE001 - an object of anybody's
        return item
    return {**own, **extra} if extra else own


def has(item: object, name: str) -> bool:
    """Whether *item* has an entry or attribute *name*, null or not."""
    return _look_up(item, name) is not _ABSENT


def _look_up(item: Any, name: str) -> Any:
    try:
        if isinstance(item, dict):
            return item.get(name, _ABSENT)
        extra: Any = getattr(item, "__pydantic_extra__", _ABSENT)
        if extra is not _ABSENT:
            # A model's own attribute look-up takes microseconds to find that there is nothing.
            found = item.__dict__.get(name, _ABSENT)
            return extra.get(name, _ABSENT) if found is _ABSENT and extra else found
        if isinstance(item, Mapping):
            return item.get(name, _ABSENT)
        return getattr(item, name, _ABSENT)
    except Exception:  # noqa: BLE001 - an object of anybody's
        return _ABSENT


def word(item: object, name: str) -> str:
    """The text in *name*, or an empty one."""
    value = field(item, name)
    return value if isinstance(value, str) else ""


def listed(item: object, name: str) -> Sequence[Any]:
    """The list in *name*, or an empty one."""
    value = field(item, name)
    return value if isinstance(value, list | tuple) else ()


def says(value: object) -> bool:
    """Whether *value* holds a piece of an answer: text, or a list with something in it."""
    return isinstance(value, str | list) and bool(value)


def nanoseconds(raw: object, unit_ns: int) -> int | None:
    """A duration given in units of *unit_ns*, or None if it is not a sane one."""
    value = as_number(raw)
    if value is None or not 0 <= value * unit_ns <= _LONGEST_NS:
        return None
    return round(value * unit_ns)
