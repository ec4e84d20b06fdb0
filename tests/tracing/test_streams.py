"""`trace_request` with a stream: passed through as it is, ended however its reader ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import context as context_api

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.tracing.builders import NAME, outcome, request

CANCELLED = "asyncio.exceptions.CancelledError"


class Source:
    """A stream of a client library: three items, one each 10 ms, and a note of being closed."""

    def __init__(self, clock: ManualClock, fail_at: int | None = None) -> None:
        self._clock = clock
        self._fail_at = fail_at
        self.made = 0
        self.closed = 0

    def _next(self) -> str:
        self._clock.advance(0.010)
        if self.made == self._fail_at:
            raise ConnectionError("secret")
        self.made += 1
        return f"item{self.made}"

    def __iter__(self) -> Iterator[str]:
        while self.made < 3:
            yield self._next()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._items()

    async def _items(self) -> AsyncIterator[str]:
        while self.made < 3:
            await asyncio.sleep(0)
            yield self._next()

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


class Sync:
    """Only the sync half of a source."""

    def __init__(self, clock: ManualClock, fail_at: int | None = None) -> None:
        self.source = Source(clock, fail_at)
        self.close = self.source.close

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)


def leaving(items: Any, **more: Any) -> Any:
    """A function that returns its stream out of the block."""
    with request() as r:
        return r.stream(items, **more)


class TestSync:
    """Sync streams."""

    def test_to_the_end_within_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The items themselves, and a complete request that lasts as long as the block."""
        with request() as r:
            assert list(r.stream(Sync(clock))) == ["item1", "item2", "item3"]
            clock.advance(0.005)
        assert outcome(in_force) == ("ok", None, False)
        assert in_force.span(NAME).attributes[semconv.E2E_US] == 35_000

    def test_it_leaves_the_block(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """The request goes with it, and ends with its last item."""
        stream = leaving(Sync(clock))
        clock.advance(0.100)
        assert (in_force.spans, len(list(stream))) == ([], 3)
        assert outcome(in_force) == ("ok", None, False)
        assert in_force.span(NAME).attributes[semconv.E2E_US] == 130_000

    def test_the_same_laziness(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Never ahead of its reader, from the first item on."""
        source = Sync(clock)
        stream = leaving(source)
        assert source.source.made == 0
        for number in (1, 2, 3):
            next(stream)
            assert number == source.source.made

    def test_the_same_items(self, in_force: CapturedTelemetry) -> None:
        """Not equal ones."""
        items = [object(), object()]
        assert [id(each) for each in items] == [id(each) for each in leaving(items)]

    def test_latencies(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Each item is an output; tokens are counted where it is said how."""
        list(leaving(Sync(clock), tokens=lambda _item: 2))
        found = in_force.span(NAME).attributes
        assert (
            found[semconv.TTFT_US],
            found[semconv.ITL_P50_US],
            found[semconv.OUTPUT_TOKENS],
        ) == (10_000, 10_000, 6)

    def test_without_a_count_there_are_no_tokens(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Items are not tokens."""
        list(leaving(Sync(clock)))
        assert semconv.OUTPUT_TOKENS not in in_force.span(NAME).attributes

    def test_a_count_that_fails(
        self, in_force: CapturedTelemetry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stream goes on."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        assert len(list(leaving(Sync(clock), tokens=lambda item: item.no_such))) == 3
        assert outcome(in_force) == ("ok", None, False)

    def test_its_own_failure(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """The same error reaches the reader; what came before it is kept."""
        stream = leaving(Sync(clock, fail_at=2))
        with pytest.raises(ConnectionError, match="secret"):
            list(stream)
        assert outcome(in_force) == ("error", "ConnectionError", True)
        assert in_force.span(NAME).attributes[semconv.TTFT_US] == 10_000

    def test_closed(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Abandoned; the source is closed once."""
        source = Sync(clock)
        stream = leaving(source)
        next(stream)
        stream.close()
        assert (source.source.closed, outcome(in_force)) == (1, ("abandoned", None, True))

    def test_dropped(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """So is one that is let go in the middle, at once."""
        source = Sync(clock)
        stream = leaving(source)
        next(stream)
        del stream
        assert (source.source.closed, outcome(in_force)) == (1, ("abandoned", None, True))

    def test_never_read(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """And one that nobody began, without a collection."""
        gc.disable()
        try:
            stream = leaving(Sync(clock))
            weak = weakref.ref(stream)
            del stream
            assert (weak(), outcome(in_force)) == (None, ("abandoned", None, True))
        finally:
            gc.enable()

    def test_a_break_outside_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The reader left, whatever it does next."""
        for _ in leaving(Sync(clock)):
            break
        assert outcome(in_force) == ("abandoned", None, True)

    def test_the_readers_failure_within_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The block's exception is the outcome."""

        def read() -> None:
            with request() as r:
                for _ in r.stream(Sync(clock)):
                    raise LookupError

        with pytest.raises(LookupError):
            read()
        assert outcome(in_force) == ("error", "LookupError", True)

    def test_two_streams(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """The request ends with the last of them."""

        def both() -> tuple[Any, Any]:
            with request() as r:
                return r.stream(Sync(clock)), r.stream(Sync(clock))

        first, second = both()
        list(first)
        assert in_force.spans == []
        list(second)
        assert outcome(in_force) == ("ok", None, False)

    def test_memory_does_not_grow(self, in_force: CapturedTelemetry) -> None:
        """However long it is."""
        with request() as r:
            for _ in r.stream(range(5_000)):
                live = r._live
                assert live is not None
                assert len(live.recorder.lanes[0].stamps) <= 2048
        assert in_force.points(semconv.SERVER_DURATION)[0].count == 1

    def test_nothing_is_attached_between_items(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The reader's context is its own."""
        before = context_api.get_current()
        for _ in leaving(Sync(clock)):
            assert before is context_api.get_current()

    def test_a_break_within_the_block(self, in_force: CapturedTelemetry) -> None:
        """The reader left the stream, so the request was abandoned and not answered."""
        with request() as r:
            for _ in r.stream(iter("abc")):
                break
        assert outcome(in_force) == ("abandoned", None, True)

    def test_a_stream_that_is_closed_unread(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Closing it closes the source, once: a connection is leaked otherwise."""
        source = Sync(clock)
        stream = leaving(source)
        stream.close()
        stream.close()
        assert (list(stream), source.source.closed) == ([], 1)
        assert outcome(in_force) == ("abandoned", None, True)


class TestAsync:
    """Async streams."""

    async def test_to_the_end_within_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The items, and a complete request."""
        async with request() as r:
            assert [item async for item in r.stream(Source(clock))] == ["item1", "item2", "item3"]
        assert outcome(in_force) == ("ok", None, False)

    async def test_it_leaves_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Read in another task, it ends there."""
        stream = leaving(Source(clock))

        async def read() -> int:
            return len([item async for item in stream])

        assert (in_force.spans, await asyncio.create_task(read())) == ([], 3)
        assert outcome(in_force) == ("ok", None, False)

    async def test_its_own_failure(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """As for sync streams."""
        stream = leaving(Source(clock, fail_at=1))
        with pytest.raises(ConnectionError, match="secret"):
            [item async for item in stream]
        assert outcome(in_force) == ("error", "ConnectionError", True)

    async def test_closed(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """The source is closed, once, before `aclose` returns."""
        source = Source(clock)
        stream = leaving(source)
        await anext(stream)
        await stream.aclose()
        assert (source.closed, outcome(in_force)) == (1, ("abandoned", None, True))

    async def test_dropped(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """The event loop closes what is let go in the middle."""
        source = Source(clock)
        stream = leaving(source)
        await anext(stream)
        del stream
        await asyncio.sleep(0.01)
        assert (source.closed, outcome(in_force)) == (1, ("abandoned", None, True))

    async def test_never_read(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """One that nobody began has ended, too."""
        stream = leaving(Source(clock))
        del stream
        assert outcome(in_force) == ("abandoned", None, True)

    async def test_cancelled_between_items(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The reader's task is cancelled where it waits for the next item."""

        async def endless() -> AsyncIterator[str]:
            yield "item1"
            await asyncio.Event().wait()

        async def read() -> None:
            async for _ in leaving(endless()):
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.01)
        assert outcome(in_force) == ("cancelled", CANCELLED, True)

    async def test_latencies(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Each item is an output."""
        assert len([item async for item in leaving(Source(clock), tokens=len)]) == 3
        found = in_force.span(NAME).attributes
        assert (found[semconv.TTFT_US], found[semconv.OUTPUT_TOKENS]) == (10_000, 15)

    async def test_memory_does_not_grow(self, in_force: CapturedTelemetry) -> None:
        """However long it is."""

        async def many() -> AsyncIterator[int]:
            for number in range(5_000):
                yield number

        with request() as r:
            async for _ in r.stream(many()):
                live = r._live
                assert live is not None
                assert len(live.recorder.lanes[0].stamps) <= 2048
        assert outcome(in_force) == ("ok", None, False)

    async def test_a_close_within_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The same with an async stream that is closed by its reader."""
        async with request() as r:
            stream = r.stream(Source(clock))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
        assert outcome(in_force)[0] == "abandoned"

    async def test_closed_unread(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Closing it closes the source, once."""
        source = Source(clock)
        stream = leaving(source)
        await stream.aclose()
        await stream.aclose()
        assert (source.closed, outcome(in_force)) == (1, ("abandoned", None, True))
