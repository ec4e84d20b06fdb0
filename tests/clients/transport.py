"""HTTP without a network: bytes handed to the real OpenAI client just as they are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx2
import openai

from tests.fakes.openai_server import SSE


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that comes in these pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self._pieces:
            yield each


class Transport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers every request with `pieces`, which may be changed between two."""

    pieces: Iterable[bytes] = ()
    content_type = SSE

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": self.content_type}, stream=Body(self.pieces)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


def client(transport: Transport) -> Any:
    """A client on that transport."""
    return openai.OpenAI(
        base_url="http://in.process/v1",
        api_key="secret",
        max_retries=0,
        http_client=httpx2.Client(transport=transport),
    )


def aclient(transport: Transport) -> Any:
    """As `client`, asynchronous."""
    return openai.AsyncOpenAI(
        base_url="http://in.process/v1",
        api_key="secret",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )
