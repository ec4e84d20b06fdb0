"""What an open stream holds beyond the bare client's and its last chunk, which is looked at."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from tests.clients.builders import STREAMED
from tests.clients.test_fuzz_openai import suppressed
from tests.clients.transport import Transport, aclient, client
from tests.fakes.openai_server import word

STREAMS = 3
AT = (16, 700, 1400)
EARLY_BYTES, LATE_BYTES, GROWTH_BYTES = 10_500, 12_000, 1_000
"""A recorded span of the SDK included. The sample of gaps is full after some 200 chunks."""


@pytest.fixture
def transport() -> Transport:
    """Words without end, each the same object."""
    made = Transport()
    made.pieces = repeat(word())
    return made


@pytest.fixture
def traced() -> Iterator[None]:
    """Allocations are counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def held() -> int:
    """Bytes that are allocated."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def per_stream(using: Any, at: tuple[int, ...] = AT, keep: int = 0) -> list[float]:
    """What one stream holds when it is open and so many chunks were read.

    The last *keep* chunks of each are kept, to be compared with one that looks at its last one.
    """
    before, found, done = held(), [], 0
    kept: list[deque[Any]] = [deque(maxlen=keep) for _ in range(STREAMS)]
    opened = [using.chat.completions.create(**STREAMED) for _ in range(STREAMS)]
    for number in at:
        for each, last in zip(opened, kept, strict=True):
            for _ in range(number - done):
                last.append(next(each))
        done = number
        found.append((held() - before) / STREAMS)
    for each in opened:
        each.close()
    return found


async def per_async_stream(using: Any, at: tuple[int, ...] = AT, keep: int = 0) -> list[float]:
    """As `per_stream`, asynchronous."""
    before, found, done = held(), [], 0
    kept: list[deque[Any]] = [deque(maxlen=keep) for _ in range(STREAMS)]
    opened = [await using.chat.completions.create(**STREAMED) for _ in range(STREAMS)]
    for number in at:
        for each, last in zip(opened, kept, strict=True):
            for _ in range(number - done):
                last.append(await anext(each))
        done = number
        found.append((held() - before) / STREAMS)
    for each in opened:
        await each.close()
    return found


def check(bare: list[float], ours: list[float]) -> None:
    """Little at first, and no more once the sample of gaps is full."""
    early, full, late = (mine - theirs for mine, theirs in zip(ours, bare, strict=True))
    assert early <= EARLY_BYTES
    assert late <= LATE_BYTES
    assert late - full <= GROWTH_BYTES


@pytest.mark.usefixtures("traced", "captured")
def test_an_open_stream(transport: Transport) -> None:
    """Soon after its start, and after thousands of chunks."""
    with client(transport) as using:
        with suppressed():
            per_stream(using, AT[:1])  # caches are filled
            bare = per_stream(using, keep=1)
        per_stream(using, AT[:1])
        check(bare, per_stream(using))


@pytest.mark.usefixtures("traced", "captured")
async def test_an_open_async_stream(transport: Transport) -> None:
    """The same, asynchronous."""
    async with aclient(transport) as using:
        with suppressed():
            await per_async_stream(using, AT[:1])
            bare = await per_async_stream(using, keep=1)
        await per_async_stream(using, AT[:1])
        check(bare, await per_async_stream(using))
