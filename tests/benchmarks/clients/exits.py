"""Every way to leave a stream, and what is seen then."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.clients.subject import Subject, logged

SHORT = "fake-chunks4"
SLOW = "fake-chunks400-first5-gap5"
LOST = "fake-chunks20-cut7"
REFUSED = "fake-status500"
READ = 4
"""Chunks that are read before a stream is left early."""
PATIENCE_S = 0.2
"""How long a span may take to end after everything was dropped: a thread may do it."""
OUTCOME = "otel_llm.outcome"


@dataclass(frozen=True)
class Left:
    """What was seen of one way to leave a stream.

    `ended` counts the spans that had ended when the application had left it, `later` those that
    ended when everything had been dropped as well. `unchanged` says that the caller's span was
    current all along and is the parent of each. `outcomes` holds what ours says, None of others.
    """

    ended: int
    later: int
    statuses: list[str]
    outcomes: list[str | None]
    unchanged: bool
    raised: str | None
    logged: list[str]


def read_to_end(subject: Subject) -> Any:
    """Read everything."""
    subject.read(subject.open(SHORT))


def broken_off(subject: Subject) -> Any:
    """Leave the loop, and forget the stream."""
    subject.read(subject.open(SLOW), READ)


def closed(subject: Subject) -> Any:
    """Close the stream, and keep it."""
    stream = subject.open(SLOW)
    subject.read(stream, READ)
    stream.close()
    return stream


def left_by_with(subject: Subject) -> Any:
    """Leave the stream's `with` block, and keep it; Ollama's streams have none."""
    with subject.open(SLOW) as stream:
        subject.read(stream, READ)
    return stream


def never_read(subject: Subject) -> Any:
    """Forget the stream unread."""
    subject.open(SLOW)


def connection_lost(subject: Subject) -> Any:
    """Read until the connection is lost."""
    subject.read(subject.open(LOST))


def consumer_raises(subject: Subject) -> Any:
    """Raise in the loop."""
    with suppress(KeyError):
        _read_and_raise(subject)


def _read_and_raise(subject: Subject) -> None:
    for number, _ in enumerate(subject.open(SLOW), 1):
        if number == READ:
            raise KeyError


def refused(subject: Subject) -> Any:
    """Be answered with HTTP status 500."""
    subject.read(subject.open(REFUSED))


async def cancelled(subject: Subject) -> Any:
    """Cancel the task that reads, in the middle."""
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await subject.open_later(SLOW):
            subject.look()
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def broken_off_later(subject: Subject) -> Any:
    """Leave the asynchronous loop, and forget the stream."""
    await subject.read_later(await subject.open_later(SLOW), READ)


async def closed_later(subject: Subject) -> Any:
    """Close the asynchronous stream, and keep it."""
    stream = await subject.open_later(SLOW)
    await subject.read_later(stream, READ)
    closing = stream.close() if hasattr(stream, "close") else stream.aclose()
    if inspect.isawaitable(closing):  # one peer's is a plain function
        await closing
    return stream


async def never_read_later(subject: Subject) -> Any:
    """Forget the asynchronous stream unread."""
    await subject.open_later(SLOW)


Exit = Callable[[Subject], Any]
EXITS: dict[str, tuple[Exit, str]] = {
    "read to the end": (read_to_end, "ok"),
    "break": (broken_off, "abandoned"),
    "close": (closed, "abandoned"),
    "with": (left_by_with, "abandoned"),
    "never read": (never_read, "abandoned"),
    "connection lost": (connection_lost, "error"),
    "consumer raises": (consumer_raises, "abandoned"),
    "HTTP 500": (refused, "error"),
    "async cancelled": (cancelled, "cancelled"),
    "async break": (broken_off_later, "abandoned"),
    "async close": (closed_later, "abandoned"),
    "async never read": (never_read_later, "abandoned"),
}
"""Every way to leave a stream, and the outcome that is right."""


def exits(library: str) -> list[str]:
    """The names of the ways that a client has."""
    return [name for name in EXITS if library == "openai" or name != "with"]


def left(subject: Subject, name: str, *, spans: int = 1) -> Left:
    """Leave a stream that way, and look; *spans* is how many a call has."""
    way = EXITS[name][0]
    with logged() as records:
        if inspect.iscoroutinefunction(way):
            return subject.loop.run_until_complete(_left_later(subject, way, spans, records))
        with subject.calling():
            raised = kept = None
            try:
                kept = way(subject)
            except Exception as error:
                raised = type(error).__name__
            ended = len(subject.spans())
        del kept
        gc.collect()
        return _seen(subject, ended, spans, raised, records)


async def _left_later(
    subject: Subject, way: Callable[[Subject], Awaitable[Any]], spans: int, records: list[str]
) -> Left:
    gc.collect()
    await asyncio.sleep(0.01)  # what was left before ends now
    with subject.calling():
        raised = kept = None
        try:
            kept = await way(subject)
        except Exception as error:
            raised = type(error).__name__
        ended = len(subject.spans())
    del kept
    gc.collect()
    await asyncio.sleep(0.01)  # the loop closes dropped generators
    return _seen(subject, ended, spans, raised, records)


def _seen(
    subject: Subject, ended: int, wanted: int, raised: str | None, records: list[str]
) -> Left:
    until = time.monotonic() + PATIENCE_S
    while len(subject.spans()) < wanted and time.monotonic() < until:
        time.sleep(0.005)
    spans = subject.spans()
    return Left(
        ended,
        len(spans),
        [span.status.status_code.name for span in spans],
        [(span.attributes or {}).get(OUTCOME) for span in spans],
        subject.unchanged and subject.below_caller(),
        raised,
        list(records),
    )
