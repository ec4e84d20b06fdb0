"""The body of an aiohttp response: its stream reader, watched. Needs wrapt only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from otel_llm.clients.http import ByteStream

_READS = ("read", "readany", "readexactly", "readline", "readuntil")
_ITERATORS = ("iter_any", "iter_chunked", "iter_chunks")


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
        if name in _ITERATORS:  # the library's own, which read through this object
            return functools.partial(getattr(type(self.__wrapped__), name), self)
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

    def __aiter__(self) -> Any:
        return type(self.__wrapped__).__aiter__(self)
