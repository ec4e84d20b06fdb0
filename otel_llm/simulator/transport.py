"""An httpx transport straight into an ASGI application: chunk by chunk, with back-pressure.

    client = httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://server")

What a server over a socket does is kept: the application runs on its own and not for whoever
reads; `send` waits once a window of bytes is on its way or unread; a response that is closed early
disconnects the client. There are no sockets, so it works on virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport, Request, Response
else:
    AsyncBaseTransport = object

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Delay: TypeAlias = Callable[[int, str], float]
UP, DOWN = "up", "down"
WINDOW = 65_536
"""Bytes that a server may have sent before the client has read them, as uvicorn has it."""
_CUT = None


class InProcessTransport(AsyncBaseTransport):
    """Sends requests to an ASGI application in this process and event loop.

    Args:
        app: The application. Its lifespan is not run.
        delay: Says in how many seconds bytes arrive that are sent now: `delay(nbytes, "up")` to
            the server, `"down"` to the client. With a method `connection` that is asked once for
            each request for a delay of its own. Nothing overtakes what was sent before it.
        window: Bytes on their way or unread after which `send` waits.
        server: Host and port as the application sees them.
        library: `httpx`, or one with the same interface such as `httpx2`.
    """

    def __init__(
        self,
        app: App,
        *,
        delay: Delay | None = None,
        window: int = WINDOW,
        server: tuple[str, int] = ("127.0.0.1", 8000),
        library: str = "httpx",
    ) -> None:
        self.app = app
        self.errors: list[Exception] = []
        """What the application raised; a server would log it."""
        self._delay = delay
        self._window = window
        self._server = server
        self._library = library
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: Request) -> Response:
        """Send *request*; returns once the headers of the response have come."""
        body = await request.aread()
        make = getattr(self._delay, "connection", None)
        delay: Delay = make() if make else self._delay or _no_delay
        httpx = importlib.import_module(self._library)
        limit_s = (request.extensions.get("timeout") or {}).get("read")
        connection = _Connection(delay, self._window, httpx, limit_s)
        try:
            await connection.wait(delay(len(body), UP))
            self._start(connection, self._scope(request), body)
            status, headers = await connection.head()
        except BaseException:
            connection.close()
            raise
        stream = _stream_type(self._library)(connection)
        response: Response = httpx.Response(
            status, headers=headers, stream=stream, extensions={"http_version": b"HTTP/1.1"}
        )
        return response

    async def aclose(self) -> None:
        """Stop what still runs in the application."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> InProcessTransport:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def _scope(self, request: Request) -> dict[str, Any]:
        path, _, query = request.url.raw_path.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 50_000),
            "server": self._server,
        }

    def _start(self, connection: _Connection, scope: dict[str, Any], body: bytes) -> None:
        # A server knows nothing of what is current in its client.
        serve = self._serve(connection, scope, body)
        task = asyncio.get_running_loop().create_task(serve, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: _Connection, scope: dict[str, Any], body: bytes) -> None:
        asked: deque[Message] = deque([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            if asked:
                return asked.popleft()
            await connection.gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self.app(scope, receive, connection.send)
        except Exception as error:  # noqa: BLE001 - of an application of anybody's
            self.errors.append(error)
        finally:
            connection.ended()


def _no_delay(_nbytes: int, _way: str) -> float:
    return 0.0


class _Connection:
    """One request and its response: what the server has sent and the client has not read yet."""

    def __init__(self, delay: Delay, window: int, httpx: Any, limit_s: float | None) -> None:
        self.gone = asyncio.Event()
        """The client has left, or all was sent: what an application's `receive` tells."""
        self._delay = delay
        self._window = window
        self._httpx = httpx
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._sent: deque[tuple[float, Any, int]] = deque()
        self._held = 0
        self._begun = self._complete = self._closed = False
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def send(self, message: Message) -> None:
        """The application's `send`; what is sent to nobody is dropped, as uvicorn does it."""
        if self._closed:
            return
        if message["type"] == "http.response.start":
            self._begun = True
            headers = list(message.get("headers", ()))
            size = 20 + sum(len(name) + len(value) + 4 for name, value in headers)
            self._put((message["status"], headers), size)
            return
        body = bytes(message.get("body", b""))
        if body:
            self._put(body, len(body))
        if not message.get("more_body", False):
            self._complete = True
            self._put(b"", 0)
            self.gone.set()
        while self._held > self._window and not self._closed:
            self._room.clear()
            await self._room.wait()

    def ended(self) -> None:
        """The application has returned; a response without an end is cut."""
        if not self._begun:
            text = b"Internal Server Error"
            self._put((500, [(b"content-type", b"text/plain; charset=utf-8")]), len(text))
            self._put(text, len(text))
            self._put(b"", 0)
        elif not self._complete:
            self._put(_CUT, 0)
        self.gone.set()

    def _put(self, item: Any, size: int) -> None:
        self._held += size
        self._sent.append((self._loop.time() + self._delay(size, DOWN), item, size))
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Let that much time pass."""
        if seconds > 0:
            await asyncio.sleep(seconds)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The status and the headers."""
        status, headers = await self._next()
        return status, headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while body := await self._next():
            yield body

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout(self._limit_s):
                item = await self._arrived()
        except TimeoutError:
            raise self._httpx.ReadTimeout("nothing came in time") from None
        if item is _CUT:
            text = "peer closed connection without sending complete message body"
            raise self._httpx.RemoteProtocolError(text)
        return item

    async def _arrived(self) -> Any:
        while not self._sent:
            self._news.clear()
            await self._news.wait()
        await self.wait(self._sent[0][0] - self._loop.time())
        _, item, size = self._sent.popleft()
        self._held -= size
        self._room.set()
        return item

    def close(self) -> None:
        """The client reads no further; the server learns of it as soon as that has arrived."""
        if self._closed or self._complete:
            return
        self._closed = True
        self._room.set()
        if (seconds := self._delay(0, UP)) > 0:
            self._loop.call_later(seconds, self.gone.set)
        else:
            self.gone.set()


@functools.cache
def _stream_type(library: str) -> Any:
    """The class of response streams: httpx asks for one that is derived from its own."""
    base: Any = importlib.import_module(library).AsyncByteStream

    class Stream(base):  # type: ignore[misc]
        """The body of one response."""

        def __init__(self, connection: _Connection) -> None:
            self._connection = connection

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._connection.pieces():
                yield piece

        async def aclose(self) -> None:
            self._connection.close()

        def __del__(self) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._connection.close()

    return Stream
