"""Hundreds of streams at once."""

from __future__ import annotations

import asyncio
import resource

from tests.servers.proxy.builders import DONE, LAST, Wire, ask, event, head, request, upstream
from tests.servers.proxy.commands import running

STREAMS, CHUNKS, GAP_S = 500, 60, 0.05
GROWTH_KIB = 6_144
"""12 KiB a stream, a quarter of what the chunks between the two readings hold."""


async def test_memory_does_not_grow_with_streams() -> None:
    """500 streams take no more when they end than when they had a few chunks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    begun = asyncio.Semaphore(0)
    big = event("y" * 500)

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await wire.send(head())
        for index in range(CHUNKS):
            await wire.chunks(big)
            if index == 10:
                begun.release()
            await asyncio.sleep(GAP_S)
        await wire.chunks(LAST, DONE)
        await wire.send(b"0\r\n\r\n")
        await wire.gone()

    async with upstream(handler) as address, running(address) as proxy:
        asked = [asyncio.create_task(ask(proxy.address, request(), 90)) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            await begun.acquire()
        early = proxy.resident_kib
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        late = proxy.resident_kib
        answers = await asyncio.gather(*asked)
    assert {(each.status, each.whole) for each in answers} == {(200, True)}
    assert {each.body for each in answers} == {big * CHUNKS + LAST + DONE}
    assert late - early < GROWTH_KIB
