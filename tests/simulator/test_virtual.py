"""Virtual time, and requests to an application in the same process."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
from typing import Any

import httpx
import pytest

from otel_llm.simulator import virtual
from otel_llm.simulator.virtual import DeadlockError, InProcessTransport, VirtualClock

URL = "http://server"


def test_waiting_takes_no_time() -> None:
    """An hour passes on the loop's clock and hardly any on ours."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(3_600)
        return loop.time() - begun

    begun = time.perf_counter()
    assert virtual.run(main()) == pytest.approx(3_600)
    assert time.perf_counter() - begun < 10


def test_timers_come_in_their_order() -> None:
    """Who sleeps shorter wakes sooner, whoever began first."""
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    async def main() -> None:
        await asyncio.gather(*(sleeper(each) for each in (30, 10, 20)))

    virtual.run(main())
    assert woken == [10, 20, 30]


def test_both_clocks_go_together() -> None:
    """Wall and monotonic clock move by what was slept, to the nanosecond."""

    async def main() -> tuple[int, int]:
        clock = VirtualClock()
        wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
        await asyncio.sleep(0.123456789)
        return clock.wall_ns() - wall, clock.monotonic_ns() - monotonic

    assert virtual.run(main()) == (123_456_789, 123_456_789)


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    """Nothing can wake a task that waits for nobody."""

    async def forgotten() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="forgotten"):
        virtual.run(forgotten())


def test_a_thread_takes_no_time() -> None:
    """What is sent to a thread runs at once, with its result and its exceptions."""

    def fail() -> None:
        raise KeyError("asked for")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await asyncio.to_thread(lambda: 7) == 7
        with pytest.raises(KeyError, match="asked for"):
            await asyncio.to_thread(fail)
        return loop.time() - begun

    assert virtual.run(main()) == 0.0


class App:
    """Sends pieces with pauses between them, and notes what happens to it."""

    def __init__(
        self, *pieces: bytes | float, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self.pieces = pieces
        self.headers = headers
        self.sent: list[float] = []
        self.gone_at: float | None = None
        self.scope: Any = None
        self.body = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self.body = (await receive())["body"]
        watch = asyncio.ensure_future(self._gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        for piece in self.pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self.sent.append(now())
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        await watch

    async def _gone(self, receive: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        self.gone_at = now()


def now() -> float:
    """Seconds since the virtual loop began."""
    return round(asyncio.get_running_loop().time() - virtual.START_S, 9)


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    """A client of that application."""
    transport = InProcessTransport(app, **options)
    return httpx.AsyncClient(transport=transport, base_url=URL, timeout=60)


def test_pieces_come_when_they_are_sent() -> None:
    """A stream is not collected first."""

    async def main() -> list[tuple[bytes, float]]:
        found = []
        async with (
            client(App(b"a", 1.0, b"b", 2.0, b"c")) as http,
            http.stream("GET", "/") as reply,
        ):
            async for piece in reply.aiter_raw():
                found.append((piece, now()))
        return found

    assert virtual.run(main()) == [(b"a", 0.0), (b"b", 1.0), (b"c", 3.0)]


def test_the_application_sees_the_request() -> None:
    """Method, path, query, headers and body as a server hands them over."""
    app = App(headers=((b"X-Answer", b"yes"),))

    async def main() -> httpx.Response:
        async with client(app) as http:
            return await http.post("/a%20b?c=d", content=b"body", headers={"X-Question": "really"})

    assert virtual.run(main()).headers["x-answer"] == "yes"
    seen = {name: app.scope[name] for name in ("method", "path", "query_string", "raw_path")}
    expected = {"method": "POST", "path": "/a b", "query_string": b"c=d", "raw_path": b"/a%20b"}
    assert (expected, b"body") == (seen, app.body)
    assert (b"x-question", b"really") in app.scope["headers"]


def test_a_slow_reader_stops_the_sender() -> None:
    """`send` waits while more than a window of bytes is unread."""
    app = App(b"x" * 60, b"x" * 60, b"x" * 60)

    async def main() -> None:
        async with client(app, window=100) as http, http.stream("GET", "/") as reply:
            await asyncio.sleep(5.0)
            async for _ in reply.aiter_raw():
                await asyncio.sleep(1.0)

    virtual.run(main())
    assert app.sent == [0.0, 5.0, 6.0]


def test_closing_early_disconnects() -> None:
    """The application learns at once that its client has left; what it sends then is dropped."""
    app = App(b"a", 9.0, b"b")

    async def main() -> None:
        async with client(app) as http:
            async with http.stream("GET", "/") as reply:
                async for _ in reply.aiter_raw():
                    break
            await asyncio.sleep(20)

    virtual.run(main())
    assert app.gone_at == 0.0


def test_a_dropped_response_disconnects() -> None:
    """Nobody need close it; the collector does."""
    app = App(b"a", 9.0, b"b")

    async def main() -> None:
        http = client(app)
        reply = await http.send(http.build_request("GET", "/"), stream=True)
        await asyncio.sleep(1.0)
        del reply
        gc.collect()
        await asyncio.sleep(20)

    virtual.run(main())
    assert app.gone_at == 1.0


def test_a_cancelled_request_disconnects() -> None:
    """Also before its headers have come."""
    app = App(b"a")

    async def main() -> None:
        async with client(app, delay=lambda _bytes, way: 5.0 if way == "down" else 0.5) as http:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await http.get("/")
            await asyncio.sleep(20)

    virtual.run(main())
    assert app.gone_at is not None


def test_each_direction_has_its_delay() -> None:
    """Up before the application begins, down before the client reads; nothing is overtaken."""
    asked: list[tuple[int, str]] = []

    def delay(size: int, way: str) -> float:
        asked.append((size, way))
        return {"up": 1.0, "down": 3.0 if size == 1 else 2.0}[way]

    app = App(b"a", b"bb")

    async def main() -> list[float]:
        found = []
        async with (
            client(app, delay=delay) as http,
            http.stream("POST", "/", content=b"1234") as reply,
        ):
            async for _ in reply.aiter_raw():
                found.append(now())
        return found

    assert virtual.run(main()) == [4.0, 4.0]
    assert asked[0] == (4, "up")
    assert app.sent == [1.0, 1.0]


def test_each_request_may_have_a_connection_of_its_own() -> None:
    """A delay with `connection` is asked once for every request."""

    class Network:
        connections = 0

        def connection(self) -> Any:
            self.connections += 1
            return lambda _bytes, _way: 0.0

    network = Network()

    async def main() -> None:
        async with client(App(b"a"), delay=network) as http:
            await http.get("/")
            await http.get("/")

    virtual.run(main())
    assert network.connections == 2


def test_an_application_that_fails_answers_500() -> None:
    """As a server would have it; what was raised can be looked at."""

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("broken")

    async def main() -> tuple[int, str, list[str]]:
        transport = InProcessTransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
            reply = await http.get("/")
        return reply.status_code, reply.text, [str(each) for each in transport.errors]

    assert virtual.run(main()) == (500, "Internal Server Error", ["broken"])


def test_an_application_that_fails_in_the_middle_cuts_its_response() -> None:
    """The client is told that the end is missing."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise ValueError("broken")

    async def main() -> None:
        async with client(app) as http:
            await http.get("/")

    with pytest.raises(httpx.RemoteProtocolError):
        virtual.run(main())


def test_a_read_may_time_out() -> None:
    """Httpx's own limit holds, in virtual time."""

    async def main() -> float:
        async with client(App(b"a", 90.0, b"b")) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.get("/", timeout=30)
            return now()

    assert virtual.run(main()) == 30.0


def test_nothing_of_the_client_is_current_in_the_server() -> None:
    """A server on a socket would not see it either."""
    name = contextvars.ContextVar("name", default="nobody")
    seen: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        seen.append(name.get())
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        name.set("client")
        async with client(app) as http:
            await http.get("/")

    virtual.run(main())
    assert seen == ["nobody"]
