"""Stream objects of client libraries, watched in place.

The object stays the library's: its class becomes a subclass made on the spot that differs in how
it is iterated. A loop gets an iterator of its own, which ends the request at once when the loop
is left; the response below tells when it is closed by any other way.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable
from typing import Any

from otel_llm.clients.call import ClientCall
from otel_llm.clients.overriding import override, state
from otel_llm.guard import guard


def handed_sync(call: ClientCall, stream: Any) -> None:
    """Watch a sync *stream*: `__stream__` makes its items, `response` is its HTTP response."""
    reading = _Reading(call)
    override(stream.response, weakref.ref(reading), _closing)
    override(stream, reading, _watched)
    _forget_source(stream)


def handed_async(call: ClientCall, stream: Any) -> None:
    """Watch an async *stream*; see `handed_sync`."""
    reading = _AsyncReading(call)
    override(stream.response, weakref.ref(reading), _aclosing)
    override(stream, reading, _watched_async)
    _forget_source(stream)


def _forget_source(stream: Any) -> None:
    """Drop the generator that was not begun: it is made again by the first read.

    It holds the stream, and the stream holds it: an unread stream would live until a collection.
    """
    vars(stream).pop("_iterator", None)


class _Events:
    """The events below a stream, and whether the protocol's terminator was seen among them.

    After the terminator they are left, and not read to their end. So nothing has to be done for
    each event to know it.
    """

    __slots__ = ("_frame", "generator")

    def __init__(self, frame: str) -> None:
        self.generator: Any = None
        self._frame = frame

    def terminated(self) -> bool | None:
        """Whether they were left, None if nobody knows; to be asked once, at the end."""
        events, self.generator = self.generator, None
        return None if events is None else getattr(events, self._frame, None) is not None


class _Source:
    """Where the items of a stream come from.

    Only the stream object holds it: when that is dropped unread, the request ends at once.
    """

    __slots__ = ("__weakref__", "events", "items", "stream")

    def __init__(self, call: ClientCall, frame: str) -> None:
        self.events = _Events(frame)
        self.stream = call.stream(terminated=self.events.terminated)
        self.items: Any = None

    def of(self, stream: Any) -> Any:
        """The library's own iterator of *stream*, made when it is first wanted."""
        if self.items is None:
            self.items = stream.__stream__()
        return self.items


class _Reading(_Source):
    """How a sync stream is being read: by one generator at a time."""

    __slots__ = ("_mine", "_theirs")

    def __init__(self, call: ClientCall) -> None:
        super().__init__(call, "gi_frame")
        self._mine: Any = None
        self._theirs: weakref.ref[Any] | None = None

    def iterator(self, stream: Any) -> Any:
        """An iterator for a loop, which holds the only reference to it."""
        current = self._current()
        self._mine = None
        return current or self._new(stream)

    def next(self, stream: Any) -> Any:
        """The next item, for a stream that is its own iterator."""
        current = self._current()
        if current is None:
            current = self._mine = self._new(stream)
        return next(current)

    def _current(self) -> Any:
        current = self._mine or (self._theirs() if self._theirs else None)
        return current if current is not None and current.gi_frame is not None else None

    def _new(self, stream: Any) -> Any:
        made = self.stream.read(self.of(stream))
        self._theirs = weakref.ref(made)
        return made

    def closed(self) -> None:
        """The response was closed; reading it to its end closes it, too, and does not count."""
        with guard("client.closed"):
            current = self._current()
            if current is not None and current.gi_running:
                return
            if current is not None:
                current.close()
            self.stream.ended(GeneratorExit())


class _AsyncReading(_Source):
    """How an async stream is being read."""

    __slots__ = ("_mine", "_theirs")

    def __init__(self, call: ClientCall) -> None:
        super().__init__(call, "ag_frame")
        self._mine: Any = None
        self._theirs: weakref.ref[Any] | None = None

    def iterator(self, stream: Any) -> Any:
        """An iterator for a loop, which holds the only reference to it."""
        mine, self._mine = self._mine, None
        return mine or self._new(stream)

    def next(self, stream: Any) -> Awaitable[Any]:
        """The next item, for a stream that is its own iterator."""
        if self._mine is None:
            self._mine = self._new(stream)
        return self._mine.__anext__()  # type: ignore[no-any-return]

    def _new(self, stream: Any) -> Any:
        made = self.stream.read_async(self.of(stream))
        self._theirs = weakref.ref(made)
        return made

    def closed(self) -> None:
        """The response was closed; reading it to its end closes it, too, and does not count."""
        with guard("client.closed"):
            current: Any = self._theirs() if self._theirs else None
            if current is None or not current.ag_running:
                self.stream.dropped()


def _watched(kind: type) -> dict[str, Any]:
    """The attributes of a stream class that reads through the `_Reading` of its instance."""
    return {
        **_source(kind),
        "__iter__": lambda self: state(self).iterator(self),
        "__next__": lambda self: state(self).next(self),
    }


def _watched_async(kind: type) -> dict[str, Any]:
    """As `_watched`, for an async stream class."""
    return {
        **_source(kind),
        "__aiter__": lambda self: state(self).iterator(self),
        "__anext__": lambda self: state(self).next(self),
    }


def _source(kind: Any) -> dict[str, Any]:
    """The stream's own iterator is made late, and the events below it are noted."""
    iter_events = getattr(kind, "_iter_events", None)

    def noted(self: Any) -> Any:
        events = state(self).events
        events.generator = iter_events(self)  # type: ignore[misc]
        return events.generator

    own: dict[str, Any] = {"_iterator": property(lambda self: state(self).of(self), _replaced)}
    return own if iter_events is None else {**own, "_iter_events": noted}


def _replaced(stream: Any, items: Any) -> None:
    """Another instrumentation has put an iterator of its own around the stream's."""
    state(stream).items = items


def _closing(kind: Any) -> dict[str, Any]:
    """A response that says when it is closed."""

    @functools.wraps(kind.close)
    def close(self: Any) -> None:
        try:
            kind.close(self)
        finally:
            _closed(self)

    return {"close": close}


def _aclosing(kind: Any) -> dict[str, Any]:
    """As `_closing`, for an async response."""

    @functools.wraps(kind.aclose)
    async def aclose(self: Any) -> None:
        try:
            await kind.aclose(self)
        finally:
            _closed(self)

    return {"aclose": aclose}


def _closed(response: Any) -> None:
    reading = state(response)()
    if reading is not None:
        reading.closed()
