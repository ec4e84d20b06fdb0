"""What is looked at of a reply as it comes in: its head up to the first token, and its tail.

A stream's first items hold its role and its first token, its last ones the finish reason, the
usage and the engine's timings. Those between are looked at only where every one counts: several
choices that end one by one, and content that shall be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from otel_llm.clients.engines import remember
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.replies import Dialect, Reply, Telling, dialect_of, read_headers
from otel_llm.replies.wire import Record, Special, parsed
from otel_llm.timeline import Mark, Phase
from otel_llm.timeline.chunks import nanoseconds

LAST_ITEMS = 3
"""How many of a stream's last items are looked at: content, finish reason, usage."""


class Reader(Protocol):
    """Reads the items of one stream. Times are monotonic seconds. Never raises."""

    def head(self, item: Any, at: float) -> Telling | None:
        """Read one of the first items; None if the next one is to be read, too.

        Otherwise which of those that follow are kept for `tail`.
        """

    def tail(self, items: list[tuple[Any, float]], passed: float | None) -> None:
        """Read the last items that tell something, in order.

        An item that was not looked at came before them at *passed*, if there was one.
        """

    def finish(self, live: LiveRequest, *, exhausted: bool) -> None:
        """Write what was read; the stream may have come to its end."""


class ReplyReader:
    """Reads a reply whose format is known, or is recognised by its first item."""

    __slots__ = (
        "_base_url",
        "_dialect",
        "_ended",
        "_every",
        "_first",
        "_last",
        "live",
        "reply",
        "terminated",
    )

    def __init__(
        self,
        live: LiveRequest,
        dialect: Dialect | None,
        body: Mapping[str, object],
        base_url: str | None = None,
    ) -> None:
        capture = live.captures_content
        self.live = live
        self.reply = Reply(capture=capture, echo=body.get("echo") is True)
        self.terminated: Callable[[], bool | None] = _unknown
        self._dialect = dialect
        self._every = capture or live.recorder.expected_sequences > 1
        self._base_url = base_url
        self._ended: float | None = None
        self._first: float | None = None
        self._last: float | None = None

    def head(self, item: Any, at: float) -> Telling | None:
        """Read one of the first items; not None once a token has come."""
        with guard("client.head"):
            ended = len(self.reply.finish_reasons)
            if self.read(item):
                if self._first is None:
                    self._first = at
                    self.live.recorder.mark(Mark.FIRST_TOKEN, nanoseconds(at))
                self._last = at
                return None if self._every else self._telling(item)
            self._note_end(ended, at)
        return None

    def _note_end(self, ended: int, at: float) -> None:
        """Note when a sequence stopped by itself in an item without text."""
        reasons = self.reply.finish_reasons
        if len(reasons) > ended and "length" not in reasons.values():
            self._ended = at

    def _telling(self, item: Any) -> Telling:
        telling = self._dialect.telling if self._dialect is not None else Telling.LAST_FEW
        if telling is Telling.FINISHING and not hasattr(item, "choices"):
            return Telling.LAST_FEW
        return telling

    def tail(self, items: list[tuple[Any, float]], passed: float | None) -> None:
        """Read the last items; those passed over before them were tokens for all that is known."""
        with guard("client.tail"):
            if passed is not None:
                self._last = passed
            for item, at in items:
                ended = len(self.reply.finish_reasons)
                if self.read(item):
                    self._last = at
                else:
                    self._note_end(ended, at)

    def whole(self, reply: Any) -> None:
        """Read a reply that came in one piece; its end is the end of it."""
        with guard("client.reply"):
            self.read(reply)
            self.reply.end_record = self.reply.end_record or self.reply.error is None

    def headers(self, headers: Mapping[str, str]) -> None:
        """Read the timings that engines and gateways state in headers."""
        with guard("client.headers"):
            read_headers(self.reply, headers)

    def parsed(self, record: Record) -> object | None:
        """The item in a record of bytes, or None if it is none."""
        item = parsed(record)
        if item is Special.DONE:
            self.reply.terminator = True
        elif item is Special.MALFORMED:
            self.reply.malformed += 1
        return None if isinstance(item, Special) else item

    def read(self, item: Any) -> bool:
        """Read *item*; True if it carries a generated token."""
        dialect = self._dialect or dialect_of(item)
        if dialect is None:
            self.reply.malformed += 1
            return False
        self._dialect = dialect
        dialect.read(self.reply, item)
        return dialect.token(item)

    def finish(self, live: LiveRequest, *, exhausted: bool) -> None:
        """Write what was read into the request."""
        recorder, reply = live.recorder, self.reply
        if reply.server_engine is not None and self._base_url is not None:
            remember(self._base_url, reply.server_engine)
        if exhausted and not reply.terminator:
            # The library swallows the terminator; where nobody can tell, it is believed.
            reply.terminator = self.terminated() is not False
        reply.into(recorder, live.annotate)
        if self._last is not None:
            recorder.mark(Mark.LAST_TOKEN, nanoseconds(self._last_token(self._last)))
        if live.captures_content and (messages := reply.messages()):
            live.answer(self, messages)

    def _last_token(self, last: float) -> float:
        """When the last token came: with the last text, or after it if the engine decoded longer.

        The token that ends a sequence has no text. An engine counts it in the decode it states.
        """
        stated_ns = self.live.recorder.stated(Phase.DECODE)
        if stated_ns is None or self._ended is None or self._first is None:
            return last
        return max(last, min(self._ended, self._first + stated_ns / 1e9))


class ItemReader:
    """Takes every item for an output of a generation, and its end for the end of the reply."""

    __slots__ = ("_count", "_seen", "live")

    def __init__(self, live: LiveRequest, count: Callable[[Any], None] | None) -> None:
        self.live = live
        self._count = count
        self._seen = False

    def head(self, item: Any, at: float) -> Telling | None:
        """Count *item*; the first one is the first token."""
        if not self._seen:
            self._seen = True
            self.live.recorder.mark(Mark.FIRST_TOKEN, nanoseconds(at))
        if self._count is not None:
            self._count(item)
        return Telling.NOTHING if self._count is None else None

    def tail(self, items: list[tuple[Any, float]], passed: float | None) -> None:
        """Nothing more is known of the last items."""

    def finish(self, live: LiveRequest, *, exhausted: bool) -> None:
        """A stream that came to its end is complete."""
        if exhausted:
            live.recorder.ending(end_record=True)


def _unknown() -> bool | None:
    return None
