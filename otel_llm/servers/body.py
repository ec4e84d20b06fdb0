"""Reading a request's JSON body ahead of the application, and passing it on unchanged."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 1024 * 1024
"""Bodies beyond this many bytes are passed on unread; the span then starts without a model."""


class BodyAhead:
    """The messages read ahead of the application; it receives every one of them, in order."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self.whole = False
        """True once the last message of the body was read here."""

    async def read(self, headers: Mapping[str, str], limit: int = LARGEST_BODY) -> dict[str, Any]:
        """The JSON object in the body, or an empty one if it is too large or something else."""
        if not _is_json(headers) or declared(headers) > limit:
            return {}
        parts: list[bytes] = []
        size = 0
        while size <= limit:
            message = await self._receive()
            self._ahead.append(message)
            if message["type"] != "http.request":
                return {}
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body", False):
                self.whole = True
                return _object(b"".join(parts)) if size <= limit else {}
        return {}

    async def receive(self) -> Message:
        """The next message for the application."""
        if self._ahead:
            return self._ahead.popleft()
        return await self._receive()


def _is_json(headers: Mapping[str, str]) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in {"application/json", ""} or kind.endswith("+json")


def declared(headers: Mapping[str, str]) -> int:
    """The length of a body as its headers state it, bytes; 0 if they do not."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
