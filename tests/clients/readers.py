"""Ways to ask a server and to read its body, of three libraries, sync and async.

Each is called as `way(request, url)` within an open `trace_request`, and gives the body it read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import aiohttp
import httpx
import httpx2
import requests

from otel_llm.tracing import TracedRequest

Way = Callable[[TracedRequest, str], bytes]
BODY = {"model": "tiny", "stream": True}
LIMIT = 10


def _joined(pieces: Iterable[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else each.encode() for each in pieces)


def _lines(lines: Iterable[Any]) -> bytes:
    return b"".join((each if isinstance(each, bytes) else each.encode()) + b"\n" for each in lines)


async def _all(pieces: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in pieces]


def httpx_way(read: Callable[[Any], bytes], library: Any = httpx) -> Way:
    """A stream of httpx, or of its successor."""

    def way(request: TracedRequest, url: str) -> bytes:
        with (
            library.Client(timeout=LIMIT) as client,
            client.stream("POST", url, json=BODY, headers=request.headers()) as response,
        ):
            return read(request.response(response))

    return way


def httpx_post(request: TracedRequest, url: str) -> bytes:
    """A body that httpx has read when it is handed over."""
    response = httpx.post(url, json=BODY, headers=request.headers())
    return request.response(response).content


def ahttpx_way(read: Callable[[Any], Awaitable[bytes]], library: Any = httpx) -> Way:
    """A stream of httpx's asynchronous client."""

    async def ask(request: TracedRequest, url: str) -> bytes:
        async with library.AsyncClient(timeout=LIMIT) as client:
            opened = client.stream("POST", url, json=BODY, headers=request.headers())
            async with opened as response:
                return await read(request.response(response))

    return lambda request, url: asyncio.run(ask(request, url))


def requests_way(read: Callable[[Any], bytes], *, stream: bool = True) -> Way:
    """A response of requests."""

    def way(request: TracedRequest, url: str) -> bytes:
        with requests.Session() as session:
            response = session.post(
                url, json=BODY, headers=request.headers(), stream=stream, timeout=LIMIT
            )
            return read(request.response(response))

    return way


def aiohttp_way(read: Callable[[Any], Awaitable[bytes]]) -> Way:
    """A response of aiohttp."""

    async def ask(request: TracedRequest, url: str) -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=BODY, headers=request.headers()) as response,
        ):
            return await read(request.response(response))

    return lambda request, url: asyncio.run(ask(request, url))


async def _alines(response: Any) -> bytes:
    return _lines([line async for line in response.aiter_lines()])


async def _abytes(response: Any) -> bytes:
    return _joined(await _all(response.aiter_bytes()))


async def _araw(response: Any) -> bytes:
    return _joined(await _all(response.aiter_raw()))


async def _atext(response: Any) -> bytes:
    return _joined(await _all(response.aiter_text()))


async def _aread(response: Any) -> bytes:
    await response.aread()
    return response.content  # type: ignore[no-any-return]


async def _content(response: Any) -> bytes:
    return _joined(await _all(response.content))


async def _any(response: Any) -> bytes:
    return _joined(await _all(response.content.iter_any()))


async def _chunked(response: Any) -> bytes:
    return _joined(await _all(response.content.iter_chunked(7)))


async def _chunks(response: Any) -> bytes:
    return _joined([data async for data, _ in response.content.iter_chunks()])


async def _readline(response: Any) -> bytes:
    found = []
    while line := await response.content.readline():
        found.append(line)
    return _joined(found)


async def _whole(response: Any) -> bytes:
    return await response.read()  # type: ignore[no-any-return]


async def _text(response: Any) -> bytes:
    return (await response.text()).encode()  # type: ignore[no-any-return]


STREAMED: dict[str, Way] = {
    "httpx.iter_lines": httpx_way(lambda response: _lines(response.iter_lines())),
    "httpx.iter_bytes": httpx_way(lambda response: _joined(response.iter_bytes())),
    "httpx.iter_bytes(3)": httpx_way(lambda response: _joined(response.iter_bytes(3))),
    "httpx.iter_text": httpx_way(lambda response: _joined(response.iter_text())),
    "httpx.read": httpx_way(lambda response: response.read()),
    "httpx2.iter_lines": httpx_way(lambda response: _lines(response.iter_lines()), httpx2),
    "httpx.aiter_lines": ahttpx_way(_alines),
    "httpx.aiter_bytes": ahttpx_way(_abytes),
    "httpx.aiter_text": ahttpx_way(_atext),
    "httpx.aread": ahttpx_way(_aread),
    "httpx2.aiter_lines": ahttpx_way(_alines, httpx2),
    "requests.iter_lines": requests_way(lambda response: _lines(response.iter_lines())),
    "requests.iter_content": requests_way(lambda response: _joined(response.iter_content(None))),
    "requests.iter_content(1)": requests_way(lambda response: _joined(response.iter_content(1))),
    "requests.text": requests_way(
        lambda response: _joined(response.iter_content(None, decode_unicode=True))
    ),
    "requests": requests_way(_joined),
    "requests.content": requests_way(lambda response: response.content),
    "aiohttp": aiohttp_way(_content),
    "aiohttp.iter_any": aiohttp_way(_any),
    "aiohttp.iter_chunked": aiohttp_way(_chunked),
    "aiohttp.iter_chunks": aiohttp_way(_chunks),
    "aiohttp.readline": aiohttp_way(_readline),
    "aiohttp.read": aiohttp_way(_whole),
    "aiohttp.text": aiohttp_way(_text),
}
"""Bodies that are read as they come."""

RAW: dict[str, Way] = {
    "httpx.iter_raw": httpx_way(lambda response: _joined(response.iter_raw())),
    "httpx.aiter_raw": ahttpx_way(_araw),
}
"""Bytes as they come from the socket, compressed or not."""

AT_ONCE: dict[str, Way] = {
    "httpx.post": httpx_post,
    "requests.post": requests_way(lambda response: response.content, stream=False),
}
"""Bodies that have been read when they are handed over."""


async def _json(response: Any) -> bytes:
    return json.dumps(await response.json()).encode()


JSON: dict[str, Way] = {
    "httpx.post": lambda request, url: json.dumps(
        request.response(httpx.post(url, json=BODY, headers=request.headers())).json()
    ).encode(),
    "requests.json": requests_way(
        lambda response: json.dumps(response.json()).encode(), stream=False
    ),
    "requests.json, streamed": requests_way(lambda response: json.dumps(response.json()).encode()),
    "aiohttp.json": aiohttp_way(_json),
    "httpx.read": STREAMED["httpx.read"],
    "httpx.aread": STREAMED["httpx.aread"],
    "aiohttp.text": STREAMED["aiohttp.text"],
}
"""Replies in one piece."""
