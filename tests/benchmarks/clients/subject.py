"""One instrumentation, one client and one server, as a check needs them."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from opentelemetry import trace

from tests.benchmarks.clients import layers
from tests.benchmarks.clients.layers import MODES
from tests.benchmarks.clients.peers import Peer
from tests.benchmarks.clients.server import FakeServer


class Subject:
    """One instrumentation with one client against one server.

    The peer's pipeline keeps spans in memory. To be closed by its `with` block.
    """

    def __init__(self, peer: Peer, library: str, server: FakeServer) -> None:
        assert peer.pipeline is not None
        self.peer, self.library, self.server = peer, library, server
        self.pipeline = peer.pipeline
        self.tracer = trace.get_tracer("check", tracer_provider=peer.pipeline.tracers)
        self.outer: Any = None
        self.unchanged = True
        self.loop = asyncio.new_event_loop()
        self._clients = {mode: self._client(mode) for mode in MODES}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._clients["sync"]._client.close()
        self.loop.run_until_complete(self._clients["async"]._client.aclose())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def open(self, model: str, *, usage: bool = True) -> Any:
        """A stream, as the application gets it."""
        call = self._asking("sync", usage=usage)
        return self.peer.sync(self.library, lambda: call(model))

    async def open_later(self, model: str) -> Any:
        """An asynchronous stream, as the application gets it."""
        call = self._asking("async")
        return await self.peer.later(self.library, lambda: call(model))

    def read(self, stream: Iterable[Any], most: int = 10_000) -> None:
        """Read chunks, and watch the caller's span meanwhile."""
        for number, _ in enumerate(stream, 1):
            self.look()
            if number == most:
                break

    async def read_later(self, stream: AsyncIterable[Any], most: int = 10_000) -> None:
        """Read chunks, and watch the caller's span meanwhile."""
        number = 0
        async for _ in stream:
            self.look()
            number += 1
            if number == most:
                break

    def look(self) -> None:
        """Note whether the caller's span is current."""
        self.unchanged = self.unchanged and trace.get_current_span() is self.outer

    @contextmanager
    def calling(self) -> Iterator[None]:
        """The caller's span, with nothing kept of what was before."""
        gc.collect()
        self.pipeline.spans.clear()
        self.unchanged = True
        with self.tracer.start_as_current_span("outer", record_exception=False) as self.outer:
            yield
            self.look()

    def spans(self) -> list[Any]:
        """The finished spans of calls; not their children, nor the caller's."""
        found = [
            span
            for span in self.pipeline.spans.get_finished_spans()
            if span.instrumentation_scope.name != "check"
        ]
        ids = {span.context.span_id for span in found}
        return [span for span in found if span.parent is None or span.parent.span_id not in ids]

    def below_caller(self) -> bool:
        """Whether the caller's span is the parent of each call's."""
        caller_id = self.outer.get_span_context().span_id
        return all(span.parent and span.parent.span_id == caller_id for span in self.spans())

    def _client(self, mode: str) -> Any:
        return layers.client(
            self.library, mode, "http", module=self.peer.module, url=self.server.url
        )

    def _asking(self, mode: str, *, usage: bool = True) -> Callable[..., Any]:
        return layers.asking(self.library, self._clients[mode], usage=usage)


@contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged as a warning or worse meanwhile."""
    records: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(f"{record.name}: {record.getMessage()[:120]}")

    handler = Keeping(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(handler)
