"""Servers with a busy event loop and a bad upstream."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from otel_llm.simulator import virtual
from otel_llm.simulator.misbehaviour import (
    CUT,
    ERROR_EVENT,
    Busy,
    Failed,
    Failure,
    Misbehaviour,
    UpstreamCutError,
    error_event,
)
from otel_llm.simulator.workload import Window

CHUNKS = 10
ASKED: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}


class Server:
    """Streams ten chunks, 10 ms apart, and notes when its `send` gave back and what it raised."""

    def __init__(self, content_type: bytes = b"text/event-stream; charset=utf-8") -> None:
        self.content_type = content_type
        self.raised: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", self.content_type)]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for number in range(CHUNKS):
                await asyncio.sleep(0.01)
                await send(body(b"data: %d\n\n" % number, more=True))
            await send(body(b""))
        except OSError as error:
            self.raised.append(type(error).__name__)
            raise


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    """A piece of a reply."""
    return {"type": "http.response.body", "body": data, "more_body": more}


class Called:
    """What one call of an application came to: messages, their times in seconds, its exception."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.error: str | None = None

    @property
    def status(self) -> int:
        """Of the reply."""
        return self.messages[0]["status"]

    @property
    def chunks(self) -> list[bytes]:
        """Pieces of the body that hold something."""
        return [each["body"] for each in self.messages[1:] if each["body"]]

    @property
    def complete(self) -> bool:
        """Whether the last piece came."""
        last = self.messages[-1]
        return last["type"] == "http.response.body" and not last.get("more_body", False)


async def call(app: Any, now_s: Any, scope: dict[str, Any]) -> Called:
    """Call an application once."""
    called = Called()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        called.messages.append(message)
        called.times.append(round(now_s(), 6))

    try:
        await app(scope, receive, send)
    except UpstreamCutError:
        called.error = "cut"
    return called


def calls(
    misbehaviour: Misbehaviour,
    count: int = 1,
    *,
    server: Server | None = None,
    scope: dict[str, Any] | None = None,
    after_s: float = 0.0,
) -> list[Called]:
    """Call a server that misbehaves so, one request after the other, on virtual time."""

    async def main() -> list[Called]:
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        def now_s() -> float:
            return loop.time() - start_s

        app = misbehaviour.wrap(server or Server(), now_s)
        await asyncio.sleep(after_s)
        return [await call(app, now_s, scope or ASKED) for _ in range(count)]

    return virtual.run(main())


def test_a_server_that_behaves_is_left_as_it_is() -> None:
    """Nothing is changed, and nothing waits."""
    (called,) = calls(Misbehaviour())
    assert (called.times[0], len(called.chunks), called.complete) == (0.0, CHUNKS, True)


def test_a_busy_loop_holds_what_goes_out() -> None:
    """For 50 ms of each 100 nothing comes and goes; what waited goes when it is free."""
    (called,) = calls(Misbehaviour(busy=(Busy(0.1, 0.05),)))
    assert called.times[:4] == [0.05, 0.06, 0.07, 0.08]
    assert 0.15 in called.times
    assert not [at for at in called.times if 1e-6 < at % 0.1 < 0.0499]


def test_a_busy_loop_is_free_outside_its_window() -> None:
    """Before and after it nothing waits."""
    (called,) = calls(Misbehaviour(busy=(Busy(0.1, 0.05, Window(50, 60)),)))
    assert called.times[:2] == [0.0, 0.01]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_refusal_is_the_whole_answer(status: int) -> None:
    """The application is not called."""
    server = Server()
    (called,) = calls(Misbehaviour(failures=(Failure(str(status), 1.0),)), server=server)
    assert (called.status, called.complete) == (status, True)
    assert json.loads(called.chunks[0])["error"]["code"] == status


def test_a_cut_breaks_the_connection_in_the_middle() -> None:
    """Some chunks come, no end, and the application learns that nobody hears it."""
    server = Server()
    (called,) = calls(Misbehaviour(failures=(Failure(CUT, 1.0),)), server=server)
    assert (called.status, called.error, called.complete) == (200, "cut", False)
    assert 1 <= len(called.chunks) < CHUNKS
    assert server.raised == ["_StoppedError"]


def test_a_cut_of_a_whole_reply_leaves_its_headers_only() -> None:
    """A reply in one piece has no middle."""
    server = Server(b"application/json")
    (called,) = calls(Misbehaviour(failures=(Failure(CUT, 1.0),)), server=server)
    assert (called.chunks, called.error, called.complete) == ([], "cut", False)


def test_an_error_event_ends_a_stream_that_began_well() -> None:
    """As vLLM tells of an error, status 200 and all."""
    (called,) = calls(Misbehaviour(failures=(Failure(ERROR_EVENT, 1.0),)))
    assert (called.status, called.error, called.complete) == (200, None, True)
    assert b'"error"' in called.chunks[-1]
    assert b"[DONE]" in called.chunks[-1]
    assert len(called.chunks) >= 2


def test_a_reply_in_one_piece_has_no_error_event() -> None:
    """It is let alone."""
    server = Server(b"application/json")
    (called,) = calls(Misbehaviour(failures=(Failure(ERROR_EVENT, 1.0),)), server=server)
    assert (len(called.chunks), called.complete) == (CHUNKS, True)


@pytest.mark.parametrize(
    ("content_type", "path", "begins"),
    [
        (b"application/x-ndjson", "/api/chat", b'{"error":'),
        (b"text/event-stream", "/v1/chat/completions", b'data: {"error": {"message"'),
        (b"text/event-stream", "/generate_stream", b'data:{"error": "'),
    ],
)
def test_each_dialect_has_its_error(content_type: bytes, path: str, begins: bytes) -> None:
    """Ollama's lines, OpenAI's and TGI's events."""
    assert error_event(content_type, path).startswith(begins)


def test_a_share_of_the_requests_fails_the_same_in_every_run() -> None:
    """About three of ten, and the same ones."""
    failing = Misbehaviour(failures=(Failure("500", 0.3),))
    first, again = ([each.status for each in calls(failing, 200)] for _ in range(2))
    assert first == again
    assert Counter(first)[500] == pytest.approx(60, abs=20)


def test_what_failed_is_noted() -> None:
    """The kind, and the trace it belongs to; a reply that is let alone is none."""

    async def main() -> list[Failed]:
        failing = Misbehaviour(failures=(Failure(ERROR_EVENT, 1.0),))
        app = failing.wrap(Server(), lambda: 0.0)
        await call(app, lambda: 0.0, ASKED | {"headers": [(b"traceparent", b"00-a-b-01")]})
        plain = failing.wrap(Server(b"application/json"), lambda: 0.0)
        await call(plain, lambda: 0.0, ASKED)
        return app.failed + plain.failed

    assert virtual.run(main()) == [Failed(ERROR_EVENT, "00-a-b-01")]


def test_failures_keep_to_their_window() -> None:
    """Before it, all is well."""
    failing = Failure("500", 1.0, Window(10, 20))
    assert calls(Misbehaviour(failures=(failing,)))[0].status == 200
    assert calls(Misbehaviour(failures=(failing,)), after_s=12)[0].status == 500


def test_shares_of_several_failures_add_up() -> None:
    """Each takes its own, and three thirds are all."""
    kinds = tuple(Failure(kind, 0.334) for kind in ("500", "503", "429"))
    found = Counter(each.status for each in calls(Misbehaviour(failures=kinds), 300))
    assert set(found) == {429, 500, 503}
    assert min(found.values()) > 70


def test_other_routes_are_not_hit() -> None:
    """Health and metrics answer as ever."""
    failing = Misbehaviour(busy=(Busy(1.0, 0.9),), failures=(Failure("500", 1.0),))
    (called,) = calls(failing, scope=ASKED | {"method": "GET"})
    assert (called.status, called.times[0]) == (200, 0.0)


def test_two_busy_times_hold_until_the_later_is_over() -> None:
    """Composed faults do not shorten each other."""
    both = (Busy(10.0, 0.3), Busy(10.0, 0.5))
    assert calls(Misbehaviour(busy=both))[0].times[0] == 0.5
    assert calls(replace(Misbehaviour(), busy=both[:1]))[0].times[0] == 0.3
