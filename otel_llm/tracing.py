"""`trace_request`: the request span for engines and clients of one's own."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from opentelemetry import context as context_api
from opentelemetry.context import Context

from otel_llm.clients.call import inject
from otel_llm.clients.http import watch_response
from otel_llm.clients.reader import ReplyReader
from otel_llm.clients.stream import came_late
from otel_llm.clients.watch import ClientWatch
from otel_llm.emit.live import LiveRequest, named, named_request
from otel_llm.emit.values import as_count, as_text, clean_text
from otel_llm.guard import guard
from otel_llm.streams import PassedAsyncStream, PassedStream, Watch
from otel_llm.timeline import Mark, Outcome, OutputTimes, Part, Phase, Side

Item = TypeVar("Item")
Response = TypeVar("Response")
Method = TypeVar("Method", bound=Callable[..., None])
Count = Callable[[Any], int]
LONGEST_REASON = 128


def _guarded(method: Method) -> Method:
    """A method of telemetry: whatever it is given, nothing is raised into the application."""
    where = f"trace_request.{method.__name__}"

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> None:
        with guard(where):
            method(*args, **kwargs)

    return cast("Method", call)


def annotate(attributes: Mapping[str, object]) -> None:
    """Further attributes of the current request's span, from anywhere in its handler.

    The current request is that of the server, or that of the nearest `TracedRequest.active()`.
    Without one nothing happens. None and unexportable values are left out.
    """
    with guard("annotate"):
        if (live := named_request()) is not None:
            live.annotate(dict(attributes))


def event(name: str, attributes: Mapping[str, object] | None = None) -> None:
    """An event of the current request's span, as `TracedRequest.event`; see `annotate`."""
    with guard("event"):
        if (live := named_request()) is not None:
            live.event(name, attributes)


@contextmanager
def _attached(live: LiveRequest) -> Iterator[None]:
    token = context_api.attach(named(live))
    try:
        yield
    finally:
        context_api.detach(token)


def current_request() -> TracedRequest:
    """The request that is open here, for code that knows more of it: an engine of one's own.

    It is that of the server (its middleware), or that of the nearest `TracedRequest.active()`.
    Its marks, outputs, usage and reasons go onto that request's span. Who opened it ends it: a
    `with` block round what this returns ends nothing. Without an open request nothing happens.
    """
    found = TracedRequest(lambda: None)
    with guard("current_request"):
        found.borrow(named_request())
    return found


class TracedRequest:
    """One request, from entering the `with` block to leaving it or to the end of its stream.

    Use it as `with` or as `async with`. It attaches nothing to the context on its own, since a
    `with` block may contain a `yield`; use `active()` around calls whose spans shall be children.
    """

    def __init__(self, start: Callable[[], LiveRequest | None]) -> None:
        self._start = start
        self._live: LiveRequest | None = None
        self._lane: OutputTimes | None = None
        self._streams = 0
        self._left = False
        self._whole = True
        self._told = False
        """Whether a reply has told itself how it ended."""
        self._borrowed = False

    def borrow(self, live: LiveRequest | None) -> None:
        """Speak of *live*, which somebody else ends."""
        self._live, self._borrowed = live, True

    def __enter__(self) -> TracedRequest:
        if not self._borrowed:
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
        """Make the request's span current, and it the one of `annotate` and `event`.

        Never around a `yield`.
        """
        return _attached(self._live) if self._live else nullcontext()

    @_guarded
    def mark(self, mark: Mark, at_ns: int | None = None) -> None:
        """Record that *mark* happened now, or at *at_ns* (`time.monotonic_ns` of this process)."""
        if self._live is not None:
            self._live.recorder.mark(Mark(mark), at_ns)

    def output(self, n_tokens: int = 1, at_ns: int | None = None) -> None:
        """Record one output of *n_tokens* tokens: one clock read and one append.

        Args:
            n_tokens: How many tokens it holds.
            at_ns: When it came (`time.monotonic_ns` of this process); now by default.
        """
        live = self._live
        if live is None or live.finished:
            return
        lane = self._lane
        if lane is None:
            lane = self._lane = live.recorder.lane()
        lane.add(live.recorder.clock.monotonic_ns() if at_ns is None else at_ns)
        if isinstance(n_tokens, int):
            live.recorder.counted_tokens = (live.recorder.counted_tokens or 0) + n_tokens

    @_guarded
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

    @_guarded
    def reported(self, phase: Phase, seconds: float) -> None:
        """Record how long the engine itself says that *phase* took."""
        if self._live is not None:
            self._live.recorder.reported(Phase(phase), round(seconds * 1e9))

    @_guarded
    def part(self, part: Part, value: int) -> None:
        """Record a part inside a phase, in the unit of its name."""
        if self._live is not None:
            self._live.recorder.part(Part(part), value)

    @_guarded
    def finish_reason(self, *reasons: str) -> None:
        """Record why generation stopped, one reason per sequence."""
        if self._live is not None:
            given = (as_text(each) for each in reasons)
            self._live.recorder.finish_reasons = tuple(each for each in given if each)

    @_guarded
    def set(self, attributes: Mapping[str, object]) -> None:
        """Further attributes of the request span; None and unexportable values are left out."""
        if self._live is not None:
            self._live.annotate(dict(attributes))

    @_guarded
    def event(self, name: str, attributes: Mapping[str, object] | None = None) -> None:
        """An event of the request span, now; the SDK keeps the last 128 and counts the others."""
        if self._live is not None:
            self._live.event(name, attributes)

    @_guarded
    def reject(self, reason: str) -> None:
        """Record that the request was refused before any token; *reason* becomes `error.type`."""
        if self._live is not None:
            self._live.recorder.fail(Outcome.REJECTED, clean_text(str(reason))[:LONGEST_REASON])

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

    def headers(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """*given* headers and those that carry the trace; what was given is not replaced."""
        headers = dict(given or {})
        if self._live is not None:
            with guard("trace_request.headers"):
                inject(self._live, headers)
        return headers

    def response(self, response: Response) -> Response:
        """Watch how *response* is read: tokens, finish reason, usage, engine timings, its end.

        Args:
            response: A response of httpx, httpx2, requests or aiohttp, read already or not yet.
                SSE, NDJSON and JSON bodies of every known engine are understood.

        Returns:
            The same object. Read it in any way; the request carries on until it was read,
            closed or dropped, and then until the `with` block is left.
        """
        live = self._live
        if live is not None and not (live.finished or live.silent):
            self._streams += 1
            reader = ReplyReader(live, None, {})
            if not watch_response(live, reader, response, self._body_ended):
                self._streams -= 1
        return response

    @_guarded
    def _body_ended(self, _failure: BaseException | None) -> None:
        self._streams -= 1
        self._told = True
        if self._left and self._streams == 0:
            self._end(None)

    def _watch(self, live: LiveRequest, tokens: Count | None) -> Watch:
        self._streams += 1
        if live.recorder.side is Side.CLIENT:
            return ClientWatch(live, _counter(live, tokens), self._stream_ended)
        live.recorder.streaming = True
        clock = live.recorder.clock.monotonic_ns
        return Watch(live.recorder.lane(), clock, _counter(live, tokens), self._stream_ended)

    @_guarded
    def _stream_ended(self, error: BaseException | None) -> None:
        self._streams -= 1
        self._whole = self._whole and error is None
        if error is not None and self._live is not None:
            self._live.fail(error)
        if self._left and self._streams == 0:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        live = self._live
        if live is None or live.finished or self._borrowed:
            return
        with guard("trace_request.end"):
            if error is not None and not (self._told and came_late(live, error)):
                live.fail(error)
            elif self._whole and not self._told:
                live.recorder.ending(end_record=True)
            live.finish_anywhere()


def _counter(live: LiveRequest, tokens: Count | None) -> Callable[[Any], None] | None:
    """What counts the tokens of each item of a stream; it does not keep the request alive."""
    if tokens is None:
        return None
    recorder = live.recorder

    def count(item: Any) -> None:
        with guard("trace_request.tokens"):
            recorder.counted_tokens = (recorder.counted_tokens or 0) + tokens(item)

    return count
