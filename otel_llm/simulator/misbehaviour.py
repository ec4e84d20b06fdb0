"""What goes wrong in a server round its engine: a busy event loop, and errors from upstream.

It is ASGI middleware, put inside the telemetry: the telemetry then sees what it would see of such
a server. Only POST requests are hit, which are those that ask a model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from otel_llm.simulator.workload import ALWAYS, Window, seeded

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
CUT, ERROR_EVENT = "cut", "error_event"
MOST_CHUNKS = 6
"""A stream that breaks does so after at most as many chunks."""
EVENT_STREAM, NDJSON = b"text/event-stream", b"application/x-ndjson"


class UpstreamCutError(ConnectionError):
    """The connection to the engine broke; the server can only break the one to its client."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A server whose event loop has something else to do, again and again.

    Whatever comes in or goes out while it is busy waits until it is free. The engine, which is
    another process in a real server, goes on.
    """

    every_s: float
    for_s: float
    window: Window = ALWAYS

    def free_at(self, now_s: float) -> float:
        """The second of the run at which the loop is free: *now_s*, or the end of this block."""
        since_s = (now_s - self.window.from_s) % self.every_s
        if now_s not in self.window or since_s >= self.for_s:
            return now_s
        return now_s + self.for_s - since_s


@dataclass(frozen=True, slots=True)
class Failure:
    """A share of the requests fails.

    Args:
        kind: An HTTP status ("500", "503", "429"); `CUT`, which breaks the connection in the middle
            of the answer; or `ERROR_EVENT`, an error told inside a stream that began with 200.
        share: Of the requests in the window, 0 to 1; shares of several failures add up.
        window: When.
    """

    kind: str
    share: float
    window: Window = ALWAYS


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """All that is wrong with a server; nothing by default."""

    busy: tuple[Busy, ...] = ()
    failures: tuple[Failure, ...] = ()

    def wrap(self, app: App, now_s: Callable[[], float], seed: int = 0) -> Misbehaving:
        """*app*, misbehaving.

        Args:
            app: An ASGI application.
            now_s: Reads the seconds since the start of the run.
            seed: Same seed and same order of requests, same failures.
        """
        return Misbehaving(app, self, now_s, seed)


@dataclass(frozen=True, slots=True)
class Failed:
    """One request that was made to fail: how, and the `traceparent` it came with, if any."""

    kind: str
    traceparent: str | None


class Misbehaving:
    """An ASGI application with a `Misbehaviour`."""

    def __init__(
        self, app: App, misbehaviour: Misbehaviour, now_s: Callable[[], float], seed: int
    ) -> None:
        self._app = app
        self._busy = misbehaviour.busy
        self._failures = misbehaviour.failures
        self._now_s = now_s
        self._seed = seed
        self._requests = 0
        self.failed: list[Failed] = []
        """Every request that was made to fail, in order."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        self._requests += 1
        rng = seeded(self._seed, self._requests, "server")
        receive, send = self._when_free(receive), self._when_free(send)
        failure = self._failure(rng)
        if failure is None:
            await self._app(scope, receive, send)
        elif failure.kind.isdigit():
            self._note(failure, scope)
            await _refuse(int(failure.kind), receive, send)
        else:
            broken = _Broken(failure.kind, scope["path"], rng, send)
            broken.stopping = lambda: self._note(failure, scope)
            await broken.serve(self._app, scope, receive)

    def _note(self, failure: Failure, scope: MutableMapping[str, Any]) -> None:
        given = dict(scope.get("headers", ())).get(b"traceparent")
        self.failed.append(Failed(failure.kind, None if given is None else given.decode("latin-1")))

    def _failure(self, rng: Random) -> Failure | None:
        now_s, drawn = self._now_s(), rng.random()
        for each in self._failures:
            if now_s in each.window:
                drawn -= each.share
                if drawn < 0:
                    return each
        return None

    def _when_free(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """*function*, which waits as long as the loop is busy."""

        async def call(*args: Any) -> Any:
            now_s = self._now_s()
            free_s = max([each.free_at(now_s) for each in self._busy], default=now_s)
            if free_s > now_s:
                await asyncio.sleep(free_s - now_s)
            return await function(*args)

        return call if self._busy else function


class _StoppedError(OSError):
    """What the application's `send` raises once its answer is broken."""


class _Broken:
    """One answer that breaks after some chunks; one that is not a stream breaks at once."""

    def __init__(self, kind: str, path: str, rng: Random, send: Send) -> None:
        self._kind = kind
        self._path = path
        self._send = send
        self._left = rng.randint(1, MOST_CHUNKS)
        self._type = b""
        self._stopped = False
        self.stopping: Callable[[], None] = lambda: None
        """Called once the answer breaks; a short one may come to its end before."""

    async def serve(self, app: App, scope: MutableMapping[str, Any], receive: Receive) -> None:
        """Run the application up to there; raises `UpstreamCutError` if the connection is cut."""
        with suppress(_StoppedError):
            await app(scope, receive, self._pass)
        if self._stopped and self._kind == CUT:
            raise UpstreamCutError

    async def _pass(self, message: Message) -> None:
        if self._stopped:
            raise _StoppedError
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            self._type = headers.get(b"content-type", b"").partition(b";")[0]
        elif message.get("body"):
            streams = self._type in {EVENT_STREAM, NDJSON}
            if self._left == 0 or (not streams and self._kind == CUT):
                await self._stop()
            self._left -= streams
        await self._send(message)

    async def _stop(self) -> None:
        self._stopped = True
        self.stopping()
        if self._kind == ERROR_EVENT:
            body = error_event(self._type, self._path)
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        raise _StoppedError


def error_event(content_type: bytes, path: str) -> bytes:
    """How vLLM, TGI and Ollama tell of an error once a stream has begun."""
    if content_type == NDJSON:
        return b'{"error":"upstream failed"}\n'
    if path.startswith("/v1/"):
        error = {"message": "upstream failed", "type": "InternalServerError", "code": 500}
        return b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"
    error = {"error": "upstream failed", "error_type": "generation"}
    return b"data:" + json.dumps(error).encode() + b"\n\n"


async def _refuse(status: int, receive: Receive, send: Send) -> None:
    """Answer with *status* once the request is here, as a gateway does whose upstream is bad."""
    while (await receive()).get("more_body", False):
        pass
    error = {"message": "no healthy upstream", "type": "upstream", "code": status}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps({"error": error}).encode()
    await send({"type": "http.response.body", "body": body})
