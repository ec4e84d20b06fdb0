"""`/healthz` and `/metrics` of the proxy itself, on an address of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from otel_llm.guard import report

LONGEST_HEAD = 16_384
PATIENCE_S = 10.0
MOST_AT_ONCE = 16
"""More connections than this at a time are closed unanswered."""
Page = Callable[[str], tuple[str, bytes]]
"""From what a client accepts, the content type and the text of the metrics."""


class Admin:
    """Answers GET of two paths; one request a connection.

    Args:
        healthy: False once the proxy is draining.
        metrics: Makes the page of metrics, or None where there are none.
    """

    def __init__(self, healthy: Callable[[], bool], metrics: Page | None) -> None:
        self._healthy = healthy
        self._metrics = metrics
        self._open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._open += 1
        try:
            if self._open <= MOST_AT_ONCE:
                async with asyncio.timeout(PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head.decode("latin-1")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: str) -> bytes:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _response(405, "text/plain", b"")
        status, kind, body = 404, "text/plain", b"there are /healthz and /metrics\n"
        if path == "/healthz":
            status, body = (200, b"ok\n") if self._healthy() else (503, b"draining\n")
        elif path == "/metrics" and self._metrics is not None:
            accept = ",".join(each[7:] for each in fields if each.lower().startswith("accept:"))
            status, kind, body = await asyncio.to_thread(self._page, self._metrics, accept.strip())
        return _response(status, kind, body, send=method == "GET")

    def _page(self, metrics: Page, accept: str) -> tuple[int, str, bytes]:
        try:
            return 200, *metrics(accept)
        except Exception as error:  # noqa: BLE001 - a collector of anybody's
            report("proxy.metrics", error)
            return 500, "text/plain", b"metrics could not be collected\n"


_REASONS = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def _response(status: int, kind: str, body: bytes, *, send: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if send else b"")
