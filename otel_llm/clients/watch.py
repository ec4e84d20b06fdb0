"""The stream of a client of one's own, passed through `TracedRequest.stream`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from otel_llm.clients.reader import ItemReader
from otel_llm.clients.stream import ClientStream
from otel_llm.emit.live import LiveRequest
from otel_llm.streams import Watch
from otel_llm.timeline import OutputTimes

Item = TypeVar("Item")


class ClientWatch(Watch):
    """The stream of a client: when its chunks came, and how long its reader kept them."""

    def __init__(
        self,
        live: LiveRequest,
        count: Callable[[Any], None] | None,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._stream: ClientStream | None = None
        super().__init__(OutputTimes(), live.recorder.clock.monotonic_ns, count, ended)
        self._live = live

    @property
    def started(self) -> bool:
        """Whether the stream was read at all."""
        return self._left or (self._stream is not None and self._stream.begun)

    @started.setter
    def started(self, started: bool) -> None:
        self._left = started

    def passed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Every item, stamped when it came and when its reader came back."""
        return self._made(items).read(iter(items))

    def passed_async(self, items: AsyncIterable[Item]) -> AsyncIterator[Item]:
        """Every item, stamped when it came and when its reader came back."""
        return self._made(items).read_async(aiter(items))

    def _made(self, items: Any) -> ClientStream:
        reader = ItemReader(self._live, self.count)
        self._stream = ClientStream(self._live, reader, closes=items, done=self.ended)
        return self._stream
