"""The stream of a client call, passed through: two clock reads and two appends per item.

The twins `read` and `read_async` are what an application iterates over. They are generators, so
that a loop that is left closes them at once; they hold nothing but what the end needs. Nothing
is attached to the context while the application has its turn.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from opentelemetry import context as context_api

from otel_llm.clients import network
from otel_llm.clients.failures import leaving, note_failure
from otel_llm.clients.reader import LAST_ITEMS, Reader
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.timeline import Mark
from otel_llm.timeline.chunks import AWAY_S, BLOCK, ChunkTimes, nanoseconds

Item = TypeVar("Item")
_END: Any = object()


class ClientStream:
    """One stream and the request it belongs to.

    Args:
        live: The open request; it ends with the stream.
        reader: Looks at the items that matter.
        closes: What is closed with this stream when it is left: a generator below it.
        lazy: Whether the request is sent by the first read.
        done: Called at the end with what went wrong, instead of ending the request then.
    """

    __slots__ = (
        "__weakref__",
        "_called",
        "_clock",
        "_closes",
        "_done",
        "_ended",
        "_lazy",
        "_passed",
        "_reader",
        "_recent",
        "begun",
        "live",
        "times",
    )

    def __init__(
        self,
        live: LiveRequest,
        reader: Reader,
        *,
        closes: Any = None,
        lazy: bool = False,
        done: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        recorder = live.recorder
        self.live = live
        self._clock: Callable[[], float] = recorder.clock.monotonic
        self._reader = reader
        self._closes = closes
        self._done = done
        self.begun = False
        self._lazy = lazy
        self._ended = False
        self._called = self._clock()
        self._recent: Sequence[Any] = ()
        self._passed: weakref.ref[Any] | None = None
        self.times = ChunkTimes(self._called)
        recorder.streaming = True
        recorder.chunks = self.times

    def opened(self, source: Iterator[Item]) -> Iterator[Item]:
        """As `read`, in a generator that has begun: closing it unread ends the request, too."""
        passed = self.read(source, begun=True)
        next(passed)
        return passed

    def like(self, items: Any, named: Any) -> Any:
        """The stream of *items* as a generator of the kind and name of *named*."""
        passed: Any = self.read_async(items) if hasattr(named, "__anext__") else self.opened(items)
        passed.__name__, passed.__qualname__ = named.__name__, named.__qualname__
        return passed

    def read(  # noqa: C901, PLR0912 - the hot loop stays in one frame
        self, source: Iterator[Item], *, begun: bool = False
    ) -> Iterator[Item]:
        """Every item of *source*, as it comes; with *begun*, after something to stop at first."""
        times, clock, reader = self.times, self._clock, self._reader
        got, asked = times.got, times.asked
        took, came_back = got.append, asked.append
        failure: BaseException | None = None
        a = b = c = None
        try:
            if begun:
                yield None  # type: ignore[misc]
            self._begun()
            if self._lazy:
                source = self._opened(source)
            for item in source:
                took(now := clock())
                enough = reader.head(item, now)
                yield item
                came_back(clock())
                if enough:
                    break
                if len(got) >= BLOCK:
                    times.fold()
            else:
                return
            while True:
                for item in islice(source, BLOCK - len(got)):
                    took(clock())
                    a, b, c = b, c, item
                    yield item
                    came_back(clock())
                if len(got) < BLOCK:
                    return
                times.fold()
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if failure is not None and hasattr(self._closes, "close"):
                    self._closes.close()
            finally:
                self._recent = [each for each in (a, b, c) if each is not None]
                self.ended(failure)

    def read_async(self, source: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """Every item of *source*, as it comes.

        An async generator that is dropped is closed by the event loop some time later; the
        request ends when it is dropped.
        """
        passed = self._read_async(source)
        self._passed = weakref.ref(passed, partial(_dropped, weakref.ref(self)))
        return passed

    async def _read_async(self, source: AsyncIterator[Item]) -> AsyncIterator[Item]:
        times, clock, reader = self.times, self._clock, self._reader
        got, asked = times.got, times.asked
        took, came_back = got.append, asked.append
        self._recent = recent = deque[Item](maxlen=LAST_ITEMS)
        keep = recent.append
        failure: BaseException | None = None
        enough = False
        self._begun()
        try:
            if self._lazy and (item := await self._opened_async(source)) is not _END:
                took(now := clock())
                enough = reader.head(item, now)
                yield item
                came_back(clock())
            async for item in source:
                took(now := clock())
                if enough:
                    keep(item)
                else:
                    enough = reader.head(item, now)
                yield item
                came_back(clock())
                if len(got) >= BLOCK:
                    times.fold()
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if failure is not None and hasattr(self._closes, "aclose"):
                    await self._closes.aclose()
            finally:
                self.ended(failure)

    def _begun(self) -> None:
        """The first item is asked for, which sends the request of a lazy client."""
        self.begun = True
        now, times = self._clock(), self.times
        if len(times.asked) < len(times.got):
            times.asked.append(now)
        elif not times.got:
            times.asked_at = now
        if self._lazy and now - self._called > AWAY_S:
            with guard("client.sent"):
                self.live.recorder.mark(Mark.SENT, nanoseconds(now))

    def _opened(self, source: Iterator[Item]) -> Iterator[Item]:
        """Send the request, in the context of the call: it is sent by the first read."""
        token = context_api.attach(self.live.context)
        try:
            return chain((next(source),), source)
        except StopIteration:
            return source
        finally:
            context_api.detach(token)

    async def _opened_async(self, source: AsyncIterator[Item]) -> Any:
        """As `_opened`; the first item itself, or `_END`."""
        token = context_api.attach(self.live.context)
        try:
            return await anext(source, _END)
        finally:
            context_api.detach(token)

    def ended(self, failure: BaseException | None) -> None:
        """End the request: read to its end, failed, or left by its reader (`GeneratorExit`)."""
        if self._ended:
            return
        self._ended = True
        live, times = self.live, self.times
        network.ended(live)
        with guard("client.ended"):
            if failure is not None and len(times.asked) < len(times.got):
                times.asked.append(self._clock())
            times.fold()
            came = times.latest[-len(self._recent) :]
            self._reader.tail(list(zip(self._recent, came, strict=False)))
            self._reader.finish(live, exhausted=failure is None)
            if failure is not None and not came_late(live, failure):
                note_failure(live, failure)
        if self._done is None:
            live.finish_anywhere()
        else:
            self._done(failure)

    def dropped(self) -> None:
        """Nobody reads it any more, as far as an asynchronous reader goes."""
        if not self._ended:
            self.ended(leaving())


def came_late(live: LiveRequest, failure: BaseException) -> bool:
    """Whether the reply had come to its end: a connection that fails then has lost nothing."""
    return isinstance(failure, Exception) and live.recorder.ended


def _dropped(stream: weakref.ref[ClientStream], _passed: object) -> None:
    if (found := stream()) is not None:
        found.dropped()
