"""Requests to a real server that end in every way a client can end them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Call:
    """One request under a trace of its own, and what the caller saw of it."""

    path: str
    body: dict[str, Any]
    outcome: str = "ok"
    leave_after: int | None = None
    give_up_after: float | None = None
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))
    status: int | None = None
    text: str = ""

    @property
    def streams(self) -> bool:
        """Whether a stream was asked for."""
        return bool(self.body.get("stream"))

    async def send(self, client: httpx.AsyncClient) -> None:
        """Send the request, and read its reply or leave it as planned."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        timeout = httpx.Timeout(60, read=self.give_up_after or 60)
        try:
            async with client.stream(
                "POST", self.path, json=self.body, headers=headers, timeout=timeout
            ) as reply:
                self.status = reply.status_code
                await self._read(reply.aiter_text())
        except httpx.ReadTimeout:
            assert self.give_up_after is not None

    async def _read(self, pieces: AsyncIterator[str]) -> None:
        seen = 0
        async for piece in pieces:
            self.text += piece
            seen += 1
            if self.leave_after is not None and seen >= self.leave_after:
                return


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
