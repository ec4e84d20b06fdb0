"""Requests to a real server that end in every way a client can end them."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.services.process import poll
from tests.services.vllm import Vllm

HOLDING = Path(__file__).with_name("holding")
"""The plugin that a server needs for requests with `HELD`."""
HELD = {"max_tokens": 100, "vllm_xargs": {"hold_after": 8}}
"""For requests that are left or given up: they get 8 tokens of 100, and then stand still."""


@dataclass
class Call:
    """One request under a trace of its own, and what the caller saw of it."""

    path: str
    body: dict[str, Any]
    outcome: str = "ok"
    leaves: bool = False
    gives_up: bool = False
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))
    status: int | None = None
    text: str = ""

    @property
    def streams(self) -> bool:
        """Whether a stream was asked for."""
        return bool(self.body.get("stream"))

    async def send(self, client: httpx.AsyncClient) -> None:
        """Send the request, and read its reply to the end, or to the first token and leave it."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        async with client.stream("POST", self.path, json=self.body, headers=headers) as reply:
            self.status = reply.status_code
            async for piece in reply.aiter_text():
                self.text += piece
                # The first event of a chat names the role, and holds no token.
                if self.leaves and self.text.count("data: ") > 1:
                    return


async def sent(url: str, calls: list[Call], *, at_once: bool = True) -> list[Call]:
    """Send all calls, at the same time or one after the other."""
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(
        base_url=url, limits=limits, timeout=300, trust_env=False
    ) as client:
        if at_once:
            await asyncio.gather(*(call.send(client) for call in calls))
        else:
            for call in calls:
                await call.send(client)
    return calls


@asynccontextmanager
async def held(engine: Vllm, calls: list[Call]) -> AsyncIterator[asyncio.Task[list[Call]]]:
    """Send calls that are `HELD`; inside, each has its first token; afterwards they are given up.

    The engine is asked in a thread: on a busy machine this loop may have chunks to read first.
    """
    before = metric(engine, FIRST_TOKENS)
    sending = asyncio.create_task(sent(engine.url, calls))
    try:
        await reached(engine, FIRST_TOKENS, before + len(calls))
        yield sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


FIRST_TOKENS = "time_to_first_token_seconds_count"


async def reached(engine: Vllm, name: str, value: float) -> None:
    """Wait until a metric of the engine is *value*."""
    read, limit = (lambda: metric(engine, name)), 60
    await asyncio.to_thread(poll, read, lambda found: found == value, limit=limit)


def metric(engine: Vllm, name: str) -> float:
    """One of the engine's numbers, as it says itself; 0 before it has said any."""
    found = re.findall(rf"(?m)^vllm:{name}{{.*}} (\S+)$", engine.metrics_text())
    return sum(map(float, found))


PROMPT = "The quick brown fox jumps over the lazy dog."


def chat(**given: Any) -> dict[str, Any]:
    """A chat request of 24 tokens."""
    messages = [{"role": "user", "content": PROMPT}]
    stop = {"stop": ["never said"]}
    return {
        "model": "tiny",
        "messages": messages,
        "max_tokens": 24,
        "ignore_eos": True,
        **stop,
        **given,
    }


def completion(**given: Any) -> dict[str, Any]:
    """A completion of 24 tokens."""
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, **given}


def response(**given: Any) -> dict[str, Any]:
    """A request of the Responses API of 24 tokens."""
    return {"model": "tiny", "input": PROMPT, "max_output_tokens": 24, **given}
