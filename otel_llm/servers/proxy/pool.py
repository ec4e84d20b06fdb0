"""Connections to the upstream, kept for a short while between two exchanges."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from otel_llm.servers.proxy.connection import Connection
from otel_llm.servers.proxy.errors import CONNECT_FAILED, CONNECT_TIMEOUT, UpstreamError
from otel_llm.servers.proxy.settings import Limits, Origin

KEPT_S = 2.0
"""Servers close idle connections after five seconds and more (uvicorn, llama.cpp)."""
MOST_KEPT = 256
_P = TypeVar("_P", bound=asyncio.Protocol)


class Upstream:
    """Opens, keeps and closes connections to one origin."""

    def __init__(self, origin: Origin, limits: Limits) -> None:
        self.origin = origin
        self._limits = limits
        self._kept: deque[tuple[float, Connection]] = deque()
        self._tls = ssl.create_default_context() if origin.tls else None

    async def open(self, *, fresh: bool = False) -> Connection:
        """A connection, a new one if it must be *fresh*.

        Raises:
            UpstreamError: Nobody listens (502), or it takes too long (504).
        """
        now = asyncio.get_running_loop().time()
        while self._kept and not fresh:
            since, kept = self._kept.pop()
            if now - since < KEPT_S and kept.idle:
                return kept
            kept.close()
        limits = self._limits
        return await self.connect(lambda: Connection(limits.header_bytes, limits.silence_s))

    async def connect(self, make: Callable[[], _P]) -> _P:
        """A new connection with the protocol that *make* returns; raises as `open`."""
        host, port = self.origin.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_s):
                _, protocol = await loop.create_connection(make, host, port, ssl=self._tls)
        except TimeoutError:
            raise UpstreamError(CONNECT_TIMEOUT, 504) from None
        except OSError:  # no name, nobody there, no TLS
            raise UpstreamError(CONNECT_FAILED) from None
        return protocol

    def release(self, connection: Connection) -> None:
        """Take a connection back: keep it, or close it if its exchange is not over."""
        if connection.reusable() and len(self._kept) < MOST_KEPT:
            now = asyncio.get_running_loop().time()
            self._kept.append((now, connection))
            while now - self._kept[0][0] > KEPT_S:
                self._kept.popleft()[1].close()
        else:
            connection.close()

    def close(self) -> None:
        """Close what is kept."""
        while self._kept:
            self._kept.pop()[1].close()
