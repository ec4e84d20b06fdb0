"""Calls of Ollama's client in whatever version is installed: `ollama_child.py URL`.

Prints one JSON object: for each call the attributes of its request span and what was answered.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from contextlib import suppress
from typing import Any

import ollama

import otel_llm
from otel_llm import semconv
from otel_llm.testing import captured_telemetry

SHORT: dict[str, Any] = {"num_predict": 24}
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me of the sea."}],
    "options": SHORT,
}
NAMES = (
    "whole", "streamed", "async_whole", "async_streamed", "generated", "embedded", "left",
    "never_read", "failed",
)  # fmt: skip
"""All calls, in the order in which they are made."""


class Calls:
    """The calls; each gives back what was answered, in pieces."""

    def __init__(self, url: str) -> None:
        self._client = ollama.Client(url)
        self._url = url

    def whole(self) -> list[Any]:
        """A reply in one piece."""
        return [self._client.chat(**ASKED)]

    def streamed(self) -> list[Any]:
        """A stream that is read to its end."""
        return list(self._client.chat(**ASKED, stream=True))

    def async_whole(self) -> list[Any]:
        """As `whole`."""

        async def call() -> list[Any]:
            return [await ollama.AsyncClient(self._url).chat(**ASKED)]

        return asyncio.run(call())

    def async_streamed(self) -> list[Any]:
        """As `streamed`."""

        async def call() -> list[Any]:
            stream: Any = await ollama.AsyncClient(self._url).chat(**ASKED, stream=True)
            return [piece async for piece in stream]

        return asyncio.run(call())

    def generated(self) -> list[Any]:
        """An answer to a prompt."""
        return list(self._client.generate("tiny", "The sea", stream=True, options=SHORT))

    def embedded(self) -> list[Any]:
        """Embeddings."""
        return [self._client.embed("tiny-embed", ["the sea", "the sky"])]

    def left(self) -> list[Any]:
        """A stream that is left after its first line."""
        stream: Any = self._client.chat(**ASKED, stream=True)
        next(stream)
        stream.close()
        return []

    def never_read(self) -> list[Any]:
        """A stream that is dropped; its request is never sent."""
        self._client.chat(**ASKED, stream=True)
        return []

    def failed(self) -> list[Any]:
        """Refused: nobody has this model."""
        with suppress(ollama.ResponseError):
            self._client.chat(**{**ASKED, "model": "nothing"})
        return []


def main(url: str) -> None:
    """Make the calls, and print what came of them."""
    captured = captured_telemetry()
    otel_llm.instrument(engines=["ollama"], **captured.providers)
    calls, found = Calls(url), {}
    for name in NAMES:
        before = len(captured.spans)
        answered = getattr(calls, name)()
        gc.collect()
        (span,) = (s for s in captured.spans[before:] if semconv.SIDE in (s.attributes or {}))
        last = answered[-1] if answered else {}
        said = last if isinstance(last, dict) else last.model_dump()
        found[name] = {"attributes": dict(span.attributes or {}), "said": said}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
