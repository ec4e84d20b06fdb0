"""The stream of a client call, passed through: two clock reads and two appends per item.

The twins `read` and `read_async` are what an application iterates over. They are generators, so
that a loop that is left closes them at once; they hold nothing but what the end needs. Nothing
is attached to the context while the application has its turn.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from opentelemetry import context as context_api

from otel_llm.clients import network
from otel_llm.clients.failures import leaving, note_failure
from otel_llm.clients.reader import LAST_ITEMS, Reader
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.replies.dialect import Telling
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
        "_kept",
        "_last",
        "_lazy",
        "_passed",
        "_reader",
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
        self._last: Any = _END  # None if items have passed, and none of them is kept
        self._kept: deque[Any] | None = None
        """Items to be read at the end; the last one may be missing."""
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
        self, source: Iterator[Any], *, begun: bool = False
    ) -> Iterator[Any]:
        """Every item of *source*, as it comes; with *begun*, after something to stop at first."""
        times, clock, reader = self.times, self._clock, self._reader
        got, asked = times.got, times.asked
        tells, finishing, done, few = None, Telling.FINISHING, Telling.DONE, Telling.LAST_FEW
        failure: BaseException | None = None
        item, passes = None, False
        try:
            if begun:
                yield None
            self._begun()
            if self._lazy:
                source = self._opened(source)
            for item in source:
                got.append(clock())
                if tells is None:
                    tells = reader.head(item, got[-1])
                else:
                    passes = True
                    try:  # a function would cost half a read of the clock
                        if tells is finishing:
                            if item.choices[0].finish_reason:
                                self._keep(item)
                        elif (tells is done and item.done) or tells is few:
                            self._keep(item)
                    except Exception:  # noqa: BLE001 - an object of anybody's
                        self._keep(item)
                yield item
                asked.append(clock())
                if tells is done:
                    item = None  # noqa: PLW2901 - it is not held while the next one is awaited
                if len(got) >= BLOCK:
                    times.fold()
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if failure is not None and hasattr(self._closes, "close"):
                    self._closes.close()
            finally:
                if passes:
                    self._last = item  # None if it tells nothing
                self.ended(failure)

    def read_async(self, source: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """Every item of *source*, as it comes.

        An async generator that is dropped is closed by the event loop some time later; the
        request ends when it is dropped.
        """
        passed = self._read_async(source)
        self._passed = weakref.ref(passed, partial(_dropped, weakref.ref(self)))
        return passed

    async def _read_async(  # noqa: C901, PLR0912 - as `read`
        self, source: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        times, clock, reader = self.times, self._clock, self._reader
        got, asked = times.got, times.asked
        tells, finishing, done, few = None, Telling.FINISHING, Telling.DONE, Telling.LAST_FEW
        failure: BaseException | None = None
        self._begun()
        try:
            if self._lazy and (item := await self._opened_async(source)) is not _END:
                got.append(clock())
                tells = reader.head(item, got[-1])
                yield item
                asked.append(clock())
            async for item in source:
                got.append(clock())
                if tells is None:
                    tells = reader.head(item, got[-1])
                else:
                    self._last = None if tells is done else item
                    try:
                        if tells is finishing:
                            if item.choices[0].finish_reason:
                                self._keep(item)
                        elif (tells is done and item.done) or tells is few:
                            self._keep(item)
                    except Exception:  # noqa: BLE001 - an object of anybody's
                        self._keep(item)
                yield item
                asked.append(clock())
                if tells is done:
                    item = None  # noqa: PLW2901 - it is not held while the next one is awaited
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

    def _keep(self, item: Any) -> None:
        if self._kept is None:
            self._kept = deque(maxlen=LAST_ITEMS)
        self._kept.append(item)

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
            return chain(iter((next(source),)), source)  # an iterator lets go of the item
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
            self._reader.tail(*self._tail())
            self._reader.finish(live, exhausted=failure is None)
            if failure is not None and not came_late(live, failure):
                note_failure(live, failure)
        if self._done is None:
            live.finish_anywhere()
        else:
            self._done(failure)

    def _tail(self) -> tuple[list[tuple[Any, float]], float | None]:
        """The last items with their times, and when the one before them came; they are let go."""
        items, last, latest = [*(self._kept or ())], self._last, self.times.latest
        if last is not _END and last is not None and not (items and items[-1] is last):
            items.append(last)
        self._kept, self._last = None, _END
        passed = (items or last is None) and len(items) < len(latest)
        # Items that finish come at the end, or near enough for their times.
        came = zip(items, latest[-len(items) :], strict=False)
        return [*came], latest[-1 - len(items)] if passed else None

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
