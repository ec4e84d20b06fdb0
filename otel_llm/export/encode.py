"""Finished spans as the bytes of OTLP requests. Pure: no I/O, no message objects.

Building a message object for each value and then serialising it takes most of the time of a
request's telemetry, hence bytes at once. What cannot be encoded is mended and what is too long is
cut, so one span never costs the batch beside it. Field
numbers are those of opentelemetry-proto 1.x.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from otel_llm import semconv
from otel_llm.emit.values import INT64, clean_text

LARGEST_REQUEST = 3_500_000
"""Receivers refuse 4 MiB by default; a batch is split before a request has more bytes than this."""
LONGEST_TEXT = 131_072
SHORTEST_CUT = 64
DEEPEST = 16
_DOUBLE = Struct("<d").pack
_FIXED64 = Struct("<Q").pack
_LOCAL, _REMOTE = (Struct("<I").pack(flags) for flags in (0x100, 0x300))
_KINDS = {kind: b"\x30" + bytes((kind.value + 1,)) for kind in SpanKind}


class Request(NamedTuple):
    """The bytes of one `ExportTraceServiceRequest`, and how many spans are in it."""

    body: bytes
    spans: int


def encoded(
    spans: Iterable[ReadableSpan],
    *,
    largest_request: int = LARGEST_REQUEST,
    longest_text: int = LONGEST_TEXT,
) -> Iterator[Request]:
    """*spans* in requests of at most *largest_request* bytes; texts are cut to *longest_text*.

    A span that is still too large has its texts cut further. Only one with more attributes than
    fit is sent larger than wanted, alone, for the receiver to judge.
    """
    batch: _Batch | None = None
    owners: dict[tuple[int, int], _Owner] = {}
    for span in spans:
        key = id(span.resource), id(span.instrumentation_scope)
        owner = owners.get(key) or owners.setdefault(
            key, _Owner(span.resource, span.instrumentation_scope)
        )
        longest, body = longest_text, _span(span, longest_text)
        while len(body) + owner.size > largest_request and longest > SHORTEST_CUT:
            longest //= 2
            body = _span(span, longest)
        if batch is None or batch.size_with(owner, body) > largest_request:
            if batch is not None:
                yield batch.request()
            batch = _Batch()
        batch.add(owner, body)
    if batch is not None:
        yield batch.request()


class _Owner:
    """Resource and scope of spans, encoded; told apart by identity, since hashing one dumps it."""

    def __init__(self, resource: Resource, scope: InstrumentationScope | None) -> None:
        self.key = id(resource)
        self.resource = _resource(resource), _schema(resource)
        self.scope = _scope(scope), _schema(scope)
        self.size = sum(map(len, self.resource + self.scope)) + 4 * _LENGTH


class _Batch:
    """Encoded spans of one request."""

    def __init__(self) -> None:
        self._count = 0
        self._size = 0
        self._owned: dict[_Owner, list[bytes]] = {}

    def size_with(self, owner: _Owner, body: bytes) -> int:
        """Bytes of a request with one more span, or a few more."""
        return self._size + len(body) + _LENGTH + (0 if owner in self._owned else owner.size)

    def add(self, owner: _Owner, body: bytes) -> None:
        """Add an encoded span."""
        self._size = self.size_with(owner, body)
        self._owned.setdefault(owner, []).append(body)
        self._count += 1

    def request(self) -> Request:
        """Everything added, as one request."""
        resources: dict[int, list[bytes]] = {}
        for owner, bodies in self._owned.items():
            spans = [b"\x12" + varint(len(body)) + body for body in bodies]
            scope, schema = owner.scope
            scoped = _field(0x12, b"".join((scope, *spans, schema)))
            resources.setdefault(owner.key, [*owner.resource]).append(scoped)
        return Request(b"".join(_field(0x0A, b"".join(r)) for r in resources.values()), self._count)


_LENGTH = 6
"""Bytes for the tag and the length of a field of at most 32 GiB."""


def _resource(resource: Resource) -> bytes:
    return _field(0x0A, _attributes(b"\x0a", resource.attributes, 0, b"\x10", LONGEST_TEXT))


def _scope(scope: InstrumentationScope | None) -> bytes:
    if scope is None:
        return b"\x0a\x00"
    said = _text(0x0A, scope.name) + _text(0x12, scope.version)
    return _field(0x0A, said + _attributes(b"\x1a", scope.attributes, 0, b"\x20", LONGEST_TEXT))


def _schema(owner: Resource | InstrumentationScope | None) -> bytes:
    return _text(0x1A, owner.schema_url) if owner is not None else b""


def _span(span: ReadableSpan, longest: int) -> bytes:
    context, parent = span.context, span.parent
    parts = [
        b"\x0a\x10",
        context.trace_id.to_bytes(16, "big"),
        b"\x12\x08",
        context.span_id.to_bytes(8, "big"),
        _state(context),
        b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
        _text(0x2A, span.name[:longest]),
        _KINDS[span.kind],
        b"\x39",
        _FIXED64(span.start_time or 0),
        b"\x41",
        _FIXED64(span.end_time or 0),
        _attributes(b"\x4a", span.attributes, span.dropped_attributes, b"\x50", longest),
    ]
    parts += [_field(0x5A, _event(event, longest)) for event in span.events]
    if span.dropped_events:
        parts.append(b"\x60" + varint(span.dropped_events))
    parts += [_field(0x6A, _link(link, longest)) for link in span.links]
    if span.dropped_links:
        parts.append(b"\x70" + varint(span.dropped_links))
    parts.append(_status(span.status, longest))
    parts.append(b"\x85\x01" + _flags(parent))
    return b"".join(parts)


def _state(context: SpanContext) -> bytes:
    state = context.trace_state
    return _text(0x1A, state.to_header()) if state else b""


def _flags(context: SpanContext | None) -> bytes:
    """Not the W3C flags, as the official encoder has it: only whether *context* was remote."""
    return _REMOTE if context is not None and context.is_remote else _LOCAL


def _event(event: Event, longest: int) -> bytes:
    attributes = _attributes(b"\x1a", event.attributes, event.dropped_attributes, b"\x20", longest)
    return b"\x09" + _FIXED64(event.timestamp) + _text(0x12, event.name[:longest]) + attributes


def _link(link: Link, longest: int) -> bytes:
    context = link.context
    return b"".join(
        (
            b"\x0a\x10" + context.trace_id.to_bytes(16, "big"),
            b"\x12\x08" + context.span_id.to_bytes(8, "big"),
            _attributes(b"\x22", link.attributes, link.dropped_attributes, b"\x28", longest),
            b"\x35" + _flags(context),
        )
    )


def _status(status: Status, longest: int) -> bytes:
    if status.status_code is StatusCode.UNSET:  # a description is for errors only
        return b"\x7a\x00"
    said = _text(0x12, (status.description or "")[:longest])
    return _field(0x7A, said + b"\x18" + bytes((status.status_code.value,)))


def _attributes(
    tag: bytes, attributes: Mapping[str, Any] | None, dropped: int, dropped_tag: bytes, longest: int
) -> bytes:
    """All attributes, each behind *tag*, and how many are missing behind *dropped_tag*."""
    if not attributes:
        return dropped_tag + varint(dropped) if dropped else b""
    parts: list[bytes] = []
    for key, value in _plain(attributes).items():
        if type(value) is str:
            if len(value) > longest:
                length = _value(len(value), longest, 0)
                parts += (tag, *_pair(_key(semconv.content_length(key[:longest])), length or b""))
            elif len(value) <= _LONGEST_WORD and len(key) < _LONGEST_KEY:
                parts += (tag, _word(key, value))
                continue
        body = _value(value, longest, 0)
        if body is None:
            dropped += 1
        else:
            head = _key(key) if len(key) < _LONGEST_KEY else _new_key(key[:longest])
            parts += (tag, *_pair(head, body))
    if dropped:
        parts += (dropped_tag, varint(dropped))
    return b"".join(parts)


def _plain(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The SDK's mapping takes steps of Python for every item; its copy is a dict."""
    return attributes.copy() if hasattr(attributes, "copy") else attributes


_LONGEST_KEY = 128


def _new_key(key: str) -> bytes:
    return _field(0x0A, _utf8(key)) + b"\x12"


_key = lru_cache(2048)(_new_key)


_LONGEST_WORD = 32
"""Texts that come again and again (names of models, routes, sources) are not longer."""


@lru_cache(1024)
def _word(key: str, text: str) -> bytes:
    return b"".join(_pair(_key(key), _value(text, _LONGEST_WORD, 0) or b""))


def _pair(head: bytes, value: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """A `KeyValue` without its tag: its length, the key up to the value's tag, length and value."""
    size = len(value)
    if size < _ONE_BYTE:
        return varint(len(head) + 1 + size), head, _VARINTS[size], value
    length = varint(size)
    return varint(len(head) + len(length) + size), head, length, value


def _value(value: Any, longest: int, depth: int) -> bytes | None:
    """An `AnyValue`, or None for what it cannot hold."""
    kind = type(value)
    if kind is str:
        text = _utf8(value if len(value) <= longest else value[:longest])
        size = len(text)
        return (_SHORT_TEXTS[size] if size < _ONE_BYTE else b"\x0a" + varint(size)) + text
    if kind is int:
        return b"\x18" + varint(value & _UINT64) if -INT64 <= value < INT64 else None
    if kind is float:
        return b"\x21" + _DOUBLE(value)
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    return _rare_value(value, longest, depth)


_UINT64 = 2**64 - 1


def _rare_value(value: Any, longest: int, depth: int) -> bytes | None:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return _field(0x3A, value[:longest])
    if depth == DEEPEST:
        return None
    if isinstance(value, Mapping):
        return _field(0x32, _attributes_within(value, longest, depth + 1))
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return _value(base(value), longest, depth)
    if isinstance(value, Sequence):
        items = (_value(each, longest, depth + 1) for each in value)
        return _field(0x2A, b"".join(_field(0x0A, each) for each in items if each is not None))
    return None


def _attributes_within(values: Mapping[Any, Any], longest: int, depth: int) -> bytes:
    pairs = ((str(key), _value(each, longest, depth)) for key, each in values.items())
    return b"".join(
        b"\x0a" + b"".join(_pair(_new_key(key[:longest]), each))
        for key, each in pairs
        if each is not None
    )


def _text(tag: int, text: str | None) -> bytes:
    return _field(tag, _utf8(text)) if text else b""


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return clean_text(text).encode()


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + varint(len(body)) + body


def varint(number: int) -> bytes:
    """*number* (0 to 2⁶⁴ - 1) in base 128, least significant group first."""
    if number < _SMALL:
        return _VARINTS[number]
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _first_varints(count: int) -> list[bytes]:
    return [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(count)]


_SMALL, _ONE_BYTE = 4096, 128
_VARINTS = _first_varints(_SMALL)
_SHORT_TEXTS = [b"\x0a" + size for size in _VARINTS[:_ONE_BYTE]]
