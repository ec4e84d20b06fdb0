"""A wrapper for other span exporters, which one bad span shall not stop. SDK glue.

One lone surrogate makes the official encoder refuse a whole batch, and one span with an image in
it makes the receiver do so. This wrapper mends what cannot be encoded, cuts what is too long, and
splits batches by their estimated bytes; for OTLP over HTTP our own encoder does all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, Status

from otel_llm import semconv
from otel_llm.emit.values import clean_text
from otel_llm.export.encode import LARGEST_REQUEST, LONGEST_TEXT, SHORTEST_CUT

SPAN_OVERHEAD = 256


class SafeSpanExporter(SpanExporter):
    """Hands mended spans to *inner*, in requests of at most *largest_request* bytes."""

    def __init__(
        self,
        inner: SpanExporter,
        *,
        largest_request: int = LARGEST_REQUEST,
        longest_text: int = LONGEST_TEXT,
    ) -> None:
        self._inner = inner
        self._largest = largest_request
        self._longest = longest_text

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export all spans; FAILURE if any of the requests failed."""
        result = SpanExportResult.SUCCESS
        for batch in self._batches(spans):
            if self._inner.export(batch) is not SpanExportResult.SUCCESS:
                result = SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        """Shut the inner exporter down."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the inner exporter."""
        return self._inner.force_flush(timeout_millis)

    def interrupt(self) -> None:
        """End an export that another thread is in, if the inner exporter can."""
        interrupt = getattr(self._inner, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def _batches(self, spans: Sequence[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
        batch: list[ReadableSpan] = []
        size = 0
        for span in spans:
            bytes_, plain = inspected(span)
            mended = span
            if not plain or bytes_ > self._longest:
                mended = self._mended(span, self._longest)
                bytes_, _ = inspected(mended)
            longest = self._longest
            while bytes_ > self._largest and longest > SHORTEST_CUT:
                longest //= 2
                mended = self._mended(span, longest)
                bytes_, _ = inspected(mended)
            if batch and size + bytes_ > self._largest:
                yield batch
                batch, size = [], 0
            batch.append(mended)
            size += bytes_
        if batch:
            yield batch

    def _mended(self, span: ReadableSpan, longest: int) -> ReadableSpan:
        mend = _Mend(longest)
        if all(mend.is_fine(text) for text in _texts(span)):
            return span
        return ReadableSpan(
            name=mend.text(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=mend.attributes(span.attributes, span.dropped_attributes),
            events=_counted([mend.event(each) for each in span.events], span.dropped_events),
            links=_counted([mend.link(each) for each in span.links], span.dropped_links),
            kind=span.kind,
            status=mend.status(span.status),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )


class _Mend:
    """Texts cut to a length, with lone surrogates replaced."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def is_fine(self, text: str) -> bool:
        return len(text) <= self._longest and (text.isascii() or clean_text(text) == text)

    def text(self, text: str) -> str:
        return clean_text(text[: self._longest])

    def attributes(self, attributes: Mapping[str, Any] | None, dropped: int) -> BoundedAttributes:
        found: dict[str, Any] = {}
        for key, value in (attributes or {}).items():
            name = self.text(key)
            if isinstance(value, str):
                found[name] = self.text(value)
                if len(value) > self._longest:
                    found[semconv.content_length(name)] = len(value)
            elif isinstance(value, tuple | list):
                found[name] = [self.text(each) if isinstance(each, str) else each for each in value]
            else:
                found[name] = value
        bounded = BoundedAttributes(None, found)
        bounded.dropped = dropped
        return bounded

    def event(self, event: Event) -> Event:
        attributes = self.attributes(event.attributes, event.dropped_attributes)
        return Event(self.text(event.name), attributes, event.timestamp)

    def link(self, link: Link) -> Link:
        return Link(link.context, self.attributes(link.attributes, link.dropped_attributes))

    def status(self, status: Status) -> Status:
        if not status.description:
            return status
        return Status(status.status_code, self.text(status.description))


def _counted(items: Sequence[Any], dropped: int) -> BoundedList[Any]:
    bounded = BoundedList.from_seq(None, items)
    bounded.dropped = dropped
    return bounded


def inspected(span: ReadableSpan) -> tuple[int, bool]:
    """About how many bytes *span* takes in a request, not less than it does; True if all ASCII.

    One tight pass, since every exported span goes through it.
    """
    size = SPAN_OVERHEAD + 96 * (len(span.events) + len(span.links))
    plain = True
    for text in (span.name, span.status.description or ""):
        plain = plain and text.isascii()
        size += 4 * len(text)
    holders = [span.attributes, *(each.attributes for each in span.events)]
    holders += [each.attributes for each in span.links]
    for attributes in holders:
        for key, value in (attributes or {}).items():
            if type(value) is str:
                ascii_ = value.isascii()
                size += len(value) if ascii_ else 4 * len(value)
                plain = plain and ascii_
            elif isinstance(value, tuple | list):
                size += sum(4 * len(each) + 16 if isinstance(each, str) else 16 for each in value)
                plain = plain and all(not isinstance(e, str) or e.isascii() for e in value)
            size += 24 + len(key)
            plain = plain and key.isascii()
    for event in span.events:
        size += 4 * len(event.name)
        plain = plain and event.name.isascii()
    return size, plain


def _texts(span: ReadableSpan) -> Iterator[str]:
    yield span.name
    if span.status.description:
        yield span.status.description
    yield from _attribute_texts(span.attributes)
    for event in span.events:
        yield event.name
        yield from _attribute_texts(event.attributes)
    for link in span.links:
        yield from _attribute_texts(link.attributes)


def _attribute_texts(attributes: Mapping[str, Any] | None) -> Iterator[str]:
    for key, value in (attributes or {}).items():
        yield key
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | list):
            yield from (each for each in value if isinstance(each, str))
