"""The body of an aiohttp response: its stream reader, watched. Needs wrapt only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from otel_llm.clients.http import ByteStream

_READS = ("read", "readany", "readexactly", "readline", "readuntil")


def watched_content(reader: Any, stream: ByteStream) -> Any:
    """*reader* with every way of reading watched; it stays an instance of its class."""
    return _Content(reader, stream)


class _Content(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A stream reader that tells what it reads, and when it has come to its end."""

    def __init__(self, reader: Any, stream: ByteStream) -> None:
        super().__init__(reader)
        self._self_stream = stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__wrapped__, name)
        return self._self_reads(found) if name in _READS else found

    def _self_reads(self, method: Any) -> Any:
        async def read(*args: Any, **kwargs: Any) -> Any:
            data = b""
            stream = self._self_stream
            try:
                stream.asks()
                data = await method(*args, **kwargs)
            except BaseException as error:
                stream.ended(error)
                raise
            self._self_took(data)
            return data

        return read

    def _self_took(self, data: bytes) -> None:
        stream = self._self_stream
        if data:
            stream.took(data)
        if not data or self.__wrapped__.at_eof():
            stream.ended(None)

    async def readchunk(self) -> tuple[bytes, bool]:
        """A chunk as it was sent, and whether it is whole."""
        stream = self._self_stream
        try:
            stream.asks()
            data, whole = await self.__wrapped__.readchunk()
        except BaseException as error:
            stream.ended(error)
            raise
        self._self_took(data)
        return data, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Data as it comes."""
        while data := await self.readany():
            yield data

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """Data in pieces of at most *n* bytes."""
        while data := await self.read(n):
            yield data

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Chunks as they were sent."""
        while (found := await self.readchunk()) != (b"", False):
            yield found
