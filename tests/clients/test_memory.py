"""What an open stream holds beyond the bare client's."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from tests.clients.builders import STREAMED
from tests.clients.test_fuzz_openai import suppressed
from tests.clients.transport import Transport, aclient, client
from tests.fakes.openai_server import word

STREAMS = 8
AT = (16, 4096)
MOST_BYTES, GROWTH_BYTES = 5_000, 1_500


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


def per_stream(using: Any) -> list[float]:
    """What one stream holds when it is open and so many chunks were read."""
    before, found = held(), []
    opened = [using.chat.completions.create(**STREAMED) for _ in range(STREAMS)]
    for number, read in zip(AT, (AT[0], AT[1] - AT[0]), strict=True):
        for each in opened:
            for _ in range(read):
                next(each)
        found.append((held() - before) / STREAMS)
        assert number
    for each in opened:
        each.close()
    return found


async def per_async_stream(using: Any) -> list[float]:
    """As `per_stream`, asynchronous."""
    before, found = held(), []
    opened = [await using.chat.completions.create(**STREAMED) for _ in range(STREAMS)]
    for number, read in zip(AT, (AT[0], AT[1] - AT[0]), strict=True):
        for each in opened:
            for _ in range(read):
                await anext(each)
        found.append((held() - before) / STREAMS)
        assert number
    for each in opened:
        await each.close()
    return found


def check(bare: list[float], ours: list[float]) -> None:
    """Little, and no more after thousands of chunks."""
    early, late = (mine - theirs for mine, theirs in zip(ours, bare, strict=True))
    print(early, late)
    assert early <= MOST_BYTES
    assert late <= MOST_BYTES
    assert late - early <= GROWTH_BYTES


@pytest.mark.usefixtures("traced", "captured")
def test_an_open_stream(transport: Transport) -> None:
    """At 16 and at 4096 chunks."""
    with client(transport) as using:
        with suppressed():
            per_stream(using)  # caches are filled
            bare = per_stream(using)
        per_stream(using)
        check(bare, per_stream(using))


@pytest.mark.usefixtures("traced", "captured")
async def test_an_open_async_stream(transport: Transport) -> None:
    """The same, asynchronous."""
    async with aclient(transport) as using:
        with suppressed():
            await per_async_stream(using)
            bare = await per_async_stream(using)
        await per_async_stream(using)
        check(bare, await per_async_stream(using))
