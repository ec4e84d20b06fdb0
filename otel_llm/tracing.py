"""`trace_request`: the request span for engines and clients of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, overload

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context

from otel_llm.emit.live import LiveRequest
from otel_llm.emit.values import as_count, as_text, clean_text
from otel_llm.guard import guard
from otel_llm.timeline import Mark, Outcome, OutputTimes, Part, Phase
from otel_llm.timeline.gaps import FOLD_AT

Item = TypeVar("Item")
Count = Callable[[Any], int]


class TracedRequest:
    """One request, from entering the `with` block to leaving it or to the end of its stream.

    Use it as `with` or as `async with`. It attaches nothing to the context on its own, since a
    `with` block may contain a `yield`; use `active()` around calls whose spans shall be children.
    """

    def __init__(self, start: Callable[[], LiveRequest | None]) -> None:
        self._start = start
        self._live: LiveRequest | None = None
        self._lane: OutputTimes | None = None
        self._output_tokens: int | None = None
        self._streams = 0
        self._left = False
        self._whole = True

    def __enter__(self) -> TracedRequest:
        with guard("trace_request.start"):
            self._live = self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left = True
        if error is not None:
            self._end(error)
        elif self._streams == 0:
            self._end(None)

    async def __aenter__(self) -> TracedRequest:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    @property
    def context(self) -> Context:
        """The context of the request's span, for propagation and explicit parents."""
        return self._live.context if self._live else context_api.get_current()

    def active(self) -> AbstractContextManager[Any]:
        """Make the request's span current; never around a `yield`."""
        span = self._live.span if self._live else trace.get_current_span()
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def mark(self, mark: Mark, at_ns: int | None = None) -> None:
        """Record that *mark* happened now, or at *at_ns* (`time.monotonic_ns` of this process)."""
        if self._live is not None:
            self._live.recorder.mark(mark, at_ns)

    def output(self, n_tokens: int = 1) -> None:
        """Record one output of *n_tokens* tokens: one clock read and one append."""
        live = self._live
        if live is None or live.finished:
            return
        lane = self._lane
        if lane is None:
            lane = self._lane = live.recorder.lane()
        lane.stamps.append(live.recorder.clock.monotonic_ns())
        self._output_tokens = (self._output_tokens or 0) + n_tokens
        if len(lane.stamps) >= FOLD_AT:
            lane.fold()

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        cache_written_tokens: int | None = None,
        reasoning_tokens: int | None = None,
    ) -> None:
        """Record token counts; input includes cached and output reasoning ones, None is unknown."""
        if self._live is not None:
            self._live.recorder.usage(
                input=as_count(input_tokens),
                output=as_count(output_tokens),
                cached=as_count(cached_tokens),
                cache_written=as_count(cache_written_tokens),
                reasoning=as_count(reasoning_tokens),
            )

    def reported(self, phase: Phase, seconds: float) -> None:
        """Record how long the engine itself says that *phase* took."""
        if self._live is not None:
            with guard("trace_request.reported"):
                self._live.recorder.reported(phase, round(seconds * 1e9))

    def part(self, part: Part, value: int) -> None:
        """Record a part inside a phase, in the unit of its name."""
        if self._live is not None:
            self._live.recorder.part(part, value)

    def finish_reason(self, *reasons: str) -> None:
        """Record why generation stopped, one reason per sequence."""
        if self._live is not None:
            given = (as_text(each) for each in reasons)
            self._live.recorder.finish_reasons = tuple(each for each in given if each)

    def set(self, attributes: Mapping[str, object]) -> None:
        """Further attributes of the request span; None and unexportable values are left out."""
        if self._live is not None:
            self._live.annotate(attributes)

    def reject(self, reason: str) -> None:
        """Record that the request was refused before any token; *reason* becomes `error.type`."""
        if self._live is not None:
            self._live.recorder.fail(Outcome.REJECTED, clean_text(reason))

    @overload
    def stream(self, items: Iterable[Item], tokens: Count | None = None) -> Iterator[Item]: ...
    @overload
    def stream(
        self, items: AsyncIterable[Item], tokens: Count | None = None
    ) -> AsyncIterator[Item]: ...
    def stream(
        self, items: Iterable[Item] | AsyncIterable[Item], tokens: Count | None = None
    ) -> Iterator[Item] | AsyncIterator[Item]:
        """Pass *items* through, each as one output; lazy as the original.

        Args:
            items: A sync or async iterable of outputs.
            tokens: Says how many tokens an item holds; without it they are not counted.

        A stream that leaves the `with` block carries the request with it: the span then ends when
        the stream is exhausted, fails, is closed, or is dropped.
        """
        live = self._live
        if isinstance(items, AsyncIterable):
            if live is None:
                return items.__aiter__()
            return PassedAsyncStream(items, self._watch(live, tokens))
        return iter(items) if live is None else PassedStream(items, self._watch(live, tokens))

    def _watch(self, live: LiveRequest, tokens: Count | None) -> _Watch:
        live.recorder.streaming = True
        self._streams += 1
        clock = live.recorder.clock.monotonic_ns
        return _Watch(live.recorder.lane(), clock, self._counter(tokens), self._stream_ended)

    def _counter(self, tokens: Count | None) -> Callable[[Any], None] | None:
        if tokens is None:
            return None

        def count(item: Any) -> None:
            with guard("trace_request.tokens"):
                self._output_tokens = (self._output_tokens or 0) + tokens(item)

        return count

    def _stream_ended(self, error: BaseException | None) -> None:
        self._streams -= 1
        self._whole = self._whole and error is None
        if error is not None and self._live is not None:
            self._live.fail(error)
        if self._left and self._streams == 0:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        live = self._live
        if live is None or live.finished:
            return
        with guard("trace_request.end"):
            if error is not None:
                live.fail(error)
            elif self._whole:
                live.recorder.ending(end_record=True)
            if live.recorder.tokens.output is None:
                live.recorder.usage(output=self._output_tokens)
            live.finish()


class _Watch:
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
            if isinstance(failure, GeneratorExit):
                _close(items)
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
            if isinstance(failure, GeneratorExit):
                await _aclose(items)
            self.ended(failure)


class PassedStream(Iterator[Item]):
    """A sync stream passed through; closing it closes the one below, also when it is unread."""

    def __init__(self, items: Iterable[Item], watch: _Watch) -> None:
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
            _close(self._items)
            self._watch.ended(GeneratorExit())


class PassedAsyncStream(AsyncIterator[Item]):
    """An async stream passed through; closing it closes the one below, also when it is unread."""

    def __init__(self, items: AsyncIterable[Item], watch: _Watch) -> None:
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
            await _aclose(self._items)
            self._watch.ended(GeneratorExit())


def _close(items: Any) -> None:
    if hasattr(items, "close"):
        items.close()


async def _aclose(items: Any) -> None:
    if hasattr(items, "aclose"):
        await items.aclose()
