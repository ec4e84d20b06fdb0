"""Trace context in header carriers of every shape in use: mappings, pairs, bytes, lists.

Reading never raises. A header that is there twice with two different values belongs to nobody:
the request starts a new trace. Writing replaces, so that a message sent again carries one parent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link

Carrier: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None
MOST_HEADERS = 256
LONGEST_VALUE = 16_384


def extract(carrier: Carrier, context: Context | None = None) -> Context:
    """The context that *carrier* names, on top of *context* (empty by default). Never raises."""
    return from_fields(normalised(carrier), context)


def from_fields(fields: Mapping[str, str], context: Context | None = None) -> Context:
    """As `extract`, of fields that are `normalised` already."""
    base = Context() if context is None else context
    if not fields:
        return base
    try:
        return propagate.extract(fields, context=base)
    except Exception:  # noqa: BLE001 - a foreign propagator met a foreign header
        return base


def normalised(carrier: Carrier) -> dict[str, str]:
    """*carrier* as lower-case text names to text values; what cannot be read is left out.

    `baggage` and `tracestate` may be split over several headers and are joined; any other name
    with two different values is left out.
    """
    found: dict[str, str] = {}
    torn: set[str] = set()
    for raw_name, raw_value in _pairs(carrier):
        name = _text(raw_name)
        if not name:
            continue
        values = raw_value if isinstance(raw_value, list | tuple) else (raw_value,)
        for raw in values:
            if (value := _text(raw)) is not None:
                _add(found, torn, name.lower(), value)
    return {key: value for key, value in found.items() if key not in torn} if torn else found


def _add(found: dict[str, str], torn: set[str], key: str, value: str) -> None:
    before = found.setdefault(key, value)
    if before is value or before == value:
        return
    if key in _LISTS:
        found[key] = f"{before},{value}"
    else:
        torn.add(key)


def injected(context: Context) -> dict[str, str]:
    """The headers that carry *context*, lower-case names."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=context)
    return {name.lower(): value for name, value in carrier.items()}


def joined(remote: Context, outer: Context, *, trust: bool) -> tuple[Context, list[Link]]:
    """The parent context and links for a request that came with *remote* on top of *outer*.

    Without trust nothing of the caller's is taken over: a new root that is linked to its trace.
    """
    if trust:
        return remote, []
    caller = trace.get_current_span(remote).get_span_context()
    return outer, [Link(caller)] if caller.is_valid and caller.is_remote else []


def header_names() -> frozenset[bytes]:
    """The headers that the process's propagators read and write, lower case."""
    return _names(propagate.get_global_textmap())


@functools.lru_cache(maxsize=8)
def _names(propagator: TextMapPropagator) -> frozenset[bytes]:
    return frozenset(name.lower().encode("latin-1") for name in propagator.fields)


def context_headers(*, trust: bool) -> frozenset[bytes]:
    """Header names that our context replaces; without trust no baggage is passed on either."""
    names = header_names()
    return names - _BAGGAGE if trust else names | _BAGGAGE


def replaced(
    headers: Iterable[tuple[bytes, bytes]],
    fields: Mapping[str, str],
    without: frozenset[bytes] = frozenset(),
) -> list[tuple[bytes, bytes]]:
    """ASGI *headers* with each of *fields* once, no older value of any, and none of *without*."""
    encoded = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields.items()}
    gone = without.union(encoded)
    return [each for each in headers if each[0].lower() not in gone] + [*encoded.items()]


def header_fields(text: str) -> dict[str, str] | None:
    """The fields of `name=value,name=value`, names in lower case; None if it is not that.

    As `OTEL_EXPORTER_OTLP_HEADERS` is written. OpenTelemetry's own parser logs an entry that it
    cannot read, and such an entry may be half a key.
    """
    found = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        if entry.strip() and not (name.strip() and equals):
            return None
        if equals:
            found[name.strip().lower()] = unquote(value.strip())
    return found


_BAGGAGE = frozenset({b"baggage"})
_LISTS = frozenset({"baggage", "tracestate"})


def _pairs(carrier: Carrier) -> list[tuple[Any, Any]]:
    if carrier is None or isinstance(carrier, str | bytes):
        return []
    try:
        items = list(carrier.items() if isinstance(carrier, Mapping) else carrier)
    except Exception:  # noqa: BLE001 - whatever a caller's object raises while it is read
        return []
    return [pair for pair in items[:MOST_HEADERS] if isinstance(pair, tuple) and len(pair) == 2]


def _text(value: object) -> str | None:
    if type(value) is bytes:
        value = value.decode("latin-1")
    elif isinstance(value, bytearray):
        value = bytes(value).decode("latin-1")
    if not isinstance(value, str) or len(value) > LONGEST_VALUE:
        return None
    return value
