"""Streams passed through: lazy as the original, stamped, and closed as their reader closes them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from otel_llm.timeline import OutputTimes
from otel_llm.timeline.gaps import FOLD_AT

Item = TypeVar("Item")


class Watch:
    """What happens to each item of a stream, and at its end."""

    __slots__ = ("clock", "count", "ended", "lane", "started")

    def __init__(
        self,
        lane: OutputTimes,
        clock: Callable[[], int],
        count: Callable[[Any], None] | None,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.lane = lane
        self.clock = clock
        self.count = count
        self.ended = ended
        self.started = False

    def passed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Every item, stamped; one clock read and one append each."""
        self.started = True
        stamps, clock, count = self.lane.stamps, self.clock, self.count
        failure: BaseException | None = None
        try:
            for item in items:
                stamps.append(clock())
                if len(stamps) >= FOLD_AT:
                    self.lane.fold()
                if count is not None:
                    count(item)
                yield item
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if isinstance(failure, GeneratorExit):
                    _close(items)
            finally:
                self.ended(failure)

    async def passed_async(self, items: AsyncIterable[Item]) -> AsyncIterator[Item]:
        """Every item, stamped; one clock read and one append each."""
        self.started = True
        stamps, clock, count = self.lane.stamps, self.clock, self.count
        failure: BaseException | None = None
        try:
            async for item in items:
                stamps.append(clock())
                if len(stamps) >= FOLD_AT:
                    self.lane.fold()
                if count is not None:
                    count(item)
                yield item
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if isinstance(failure, GeneratorExit):
                    await _aclose(items)
            finally:
                self.ended(failure)


class PassedStream(Iterator[Item]):
    """A sync stream passed through; closing it closes the one below, also when it is unread."""

    def __init__(self, items: Iterable[Item], watch: Watch) -> None:
        self._items = items
        self._watch = watch
        self._passed = watch.passed(items)

    def __iter__(self) -> Iterator[Item]:
        return self._passed

    def __next__(self) -> Item:
        return next(self._passed)

    def close(self) -> None:
        """Leave the stream; the request was abandoned unless it had come to its end."""
        self._passed.close()  # type: ignore[attr-defined]
        if not self._watch.started:
            self._watch.started = True
            try:
                _close(self._items)
            finally:
                self._watch.ended(GeneratorExit())


class PassedAsyncStream(AsyncIterator[Item]):
    """An async stream passed through; closing it closes the one below, also when it is unread."""

    def __init__(self, items: AsyncIterable[Item], watch: Watch) -> None:
        self._items = items
        self._watch = watch
        self._passed = watch.passed_async(items)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._passed

    async def __anext__(self) -> Item:
        return await anext(self._passed)

    async def aclose(self) -> None:
        """Leave the stream; the request was abandoned unless it had come to its end."""
        await self._passed.aclose()  # type: ignore[attr-defined]
        if not self._watch.started:
            self._watch.started = True
            try:
                await _aclose(self._items)
            finally:
                self._watch.ended(GeneratorExit())


def _close(items: Any) -> None:
    if hasattr(items, "close"):
        items.close()


async def _aclose(items: Any) -> None:
    if hasattr(items, "aclose"):
        await items.aclose()
