"""Replies of every length and end: chunks pass at once, spans end with the last byte."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.emit.live import current_request
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.fakes.asgi import (
    Connection,
    chat_body,
    chunk,
    generates,
    replies,
    start,
    streams,
)
from tests.servers.builders import (
    ANSWER,
    REQUEST,
    SERVER,
    outcome,
    pair,
    serve,
)


class TestStream:
    """A streamed reply, chunk by chunk."""

    async def test_each_chunk_goes_on_at_once(self, captured: CapturedTelemetry) -> None:
        """It has been sent before the next one is made."""
        connection, made = Connection(), []

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await send(start(kind="text/event-stream"))
            for number in range(3):
                await send(chunk(b"%d" % number))
                made.append(len(connection.sent))
            await send(chunk(more=False))

        await serve(app, captured, connection)
        assert made == [2, 3, 4]

    async def test_500_chunks(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """The number of spans does not grow with the reply."""
        await serve(generates(clock, *[b"data: x\n\n"] * 500), captured)
        assert len(captured.spans) <= 10
        assert not any(each.events for each in captured.spans)

    async def test_a_stream_of_which_no_engine_tells(self, captured: CapturedTelemetry) -> None:
        """Where nobody says how generation ended, the end of the reply is the end."""
        connection = Connection(chat_body(stream=True))
        await serve(streams(b"data: x\n\n", b"data: [DONE]\n\n"), captured, connection)
        assert outcome(captured) == ("ok", None, None)

    async def test_it_ends_with_the_last_byte(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Work after the reply is not the request's."""

        async def app(given: Any, receive: Any, send: Any) -> None:
            await generates(clock, *[b"data: x\n\n"] * 5)(given, receive, send)
            ended.append(len(captured.spans))
            clock.advance(10)

        ended: list[int] = []
        await serve(app, captured)
        assert captured.span(REQUEST).attributes[semconv.E2E_US] == 50_000
        assert [len(captured.spans)] == ended

    async def test_a_background_task_is_not_the_requests(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Neither its time nor its calls of an engine."""
        late: list[Any] = []

        async def app(given: Any, receive: Any, send: Any) -> None:
            await generates(clock, b"data: x\n\n")(given, receive, send)
            late.append(current_request())

        await serve(app, captured)
        assert late == [None]

    async def test_first_delivered(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """Neither headers nor comments nor what came before the first output count."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            lane = live.recorder.lane()
            await send(start(kind="text/event-stream"))
            clock.advance(0.010)
            await send(chunk(b"data: role\n\n"))
            clock.advance(0.010)
            lane.stamps.append(clock.monotonic_ns())
            for data in (b": ping\n\n", b"", b"data: one\n\n", b"data: two\n\n"):
                clock.advance(0.003)
                await send(chunk(data))
            lane.stamps.append(clock.monotonic_ns())
            live.recorder.finish_reasons = ("stop",)
            await send(chunk(more=False))

        await serve(app, captured)
        assert captured.span(REQUEST).attributes["otel_llm.first_token_us"] == 9_000

    async def test_a_slow_send_is_delivery_time(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """A chunk counts as delivered when the server has taken it; the reply's type decides."""

        class Slow(Connection):
            """A peer that is slow to read, and did not ask for a stream."""

            async def send(self, message: Any) -> None:
                clock.advance(0.030)
                await super().send(message)

        await serve(generates(clock, b"data: x\n\n", b"data: y\n\n"), captured, Slow())
        assert captured.span(REQUEST).attributes["otel_llm.first_token_us"] == 30_000

    async def test_a_plain_reply_has_no_first_token_phase(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Nobody waited for a first token on its own."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            clock.advance(0.010)
            live.recorder.lane().stamps.append(clock.monotonic_ns())
            await ANSWER(_scope, receive, send)

        await serve(app, captured)
        assert "otel_llm.first_token_us" not in captured.span(REQUEST).attributes

    async def test_a_chunk_that_is_a_memoryview(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Starlette sends them; the application must not see an error of ours."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            await send(start(kind="text/event-stream"))
            live.recorder.lane().stamps.append(clock.monotonic_ns())
            await send(chunk(memoryview(b"data: x\n\n")))  # type: ignore[arg-type]
            await send(chunk(more=False))

        connection = await serve(app, captured)
        assert len(connection.sent) == 3

    async def test_a_comment_and_data_in_one_chunk(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """A chunk that begins with a comment may hold the first token."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            lane = live.recorder.lane()
            await send(start(kind="text/event-stream"))
            lane.stamps.append(clock.monotonic_ns())
            for data in (b": ping\n\ndata: one\n\n", b"data: two\n\n"):
                clock.advance(0.010)
                await send(chunk(data))
            lane.stamps.append(clock.monotonic_ns())
            await send(chunk(more=False))

        await serve(app, captured)
        assert captured.span(REQUEST).attributes["otel_llm.first_token_us"] == 10_000


class TestEndings:
    """Every way in which a request can end."""

    async def test_the_peer_leaves(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """Cancelled and incomplete, ended when the server learns of it."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            await send(start(kind="text/event-stream"))
            for _ in range(100):
                clock.advance(0.010)
                live.recorder.lane().stamps.append(clock.monotonic_ns())
                await send(chunk(b"data: x\n\n"))
            connection.leave()
            await receive()
            await receive()
            clock.advance(9)

        connection = Connection()
        await serve(app, captured, connection)
        assert outcome(captured) == ("cancelled", "peer_gone", True)
        assert captured.span(REQUEST).attributes[semconv.E2E_US] == 1_000_000
        assert [each.status.status_code for each in pair(captured)] == [StatusCode.UNSET] * 2

    async def test_send_fails(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """A broken connection is a peer that left; the application sees the error itself."""
        with pytest.raises(BrokenPipeError, match="went away"):
            await serve(generates(clock, *[b"data: x\n\n"] * 9), captured, Connection(accepts=3))
        assert outcome(captured) == ("cancelled", "peer_gone", True)

    async def test_the_application_fails(self, captured: CapturedTelemetry) -> None:
        """The error's class is on both spans, its message on none."""

        async def app(*_given: Any) -> None:
            raise LookupError("secret")

        with pytest.raises(LookupError, match="secret"):
            await serve(app, captured)
        assert outcome(captured) == ("error", "LookupError", None)
        assert [each.attributes["error.type"] for each in pair(captured)] == ["LookupError"] * 2
        assert "secret" not in str([each.to_json() for each in captured.spans])
        assert not any(each.events for each in captured.spans)

    async def test_the_application_fails_within_a_stream(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """HTTP 200 is no success."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await send(start(kind="text/event-stream"))
            await send(chunk(b"data: x\n\n"))
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await serve(app, captured)
        assert outcome(captured) == ("error", "RuntimeError", True)
        assert captured.span(SERVER).attributes[semconv.HTTP_STATUS] == 200

    async def test_the_task_is_cancelled(self, captured: CapturedTelemetry) -> None:
        """The cancellation goes on to whoever cancelled."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(serve(app, captured), 0.01)
        assert outcome(captured)[:2] == ("cancelled", "asyncio.exceptions.CancelledError")

    @pytest.mark.parametrize(
        ("status", "expected", "code"),
        [
            (400, "rejected", StatusCode.UNSET),
            (404, "rejected", StatusCode.UNSET),
            (429, "rejected", StatusCode.UNSET),
            (500, "error", StatusCode.ERROR),
            (502, "error", StatusCode.ERROR),
            (503, "rejected", StatusCode.ERROR),
        ],
    )
    @pytest.mark.parametrize("asked", [True, False])
    async def test_error_replies(
        self,
        captured: CapturedTelemetry,
        status: int,
        expected: str,
        code: StatusCode,
        asked: bool,
    ) -> None:
        """Refused or broken, and no incomplete stream where none began."""
        app = replies(start(status), chunk(b"{}", more=False))
        await serve(app, captured, Connection(chat_body(stream=asked)))
        assert (expected, str(status), None) == outcome(captured)
        assert [code] * 2 == [each.status.status_code for each in pair(captured)]
        assert status == captured.span(SERVER).attributes[semconv.HTTP_STATUS]

    async def test_success_leaves_no_status(self, captured: CapturedTelemetry) -> None:
        """Unset, as the conventions want it."""
        await serve(ANSWER, captured)
        assert [each.status.status_code for each in pair(captured)] == [StatusCode.UNSET] * 2

    async def test_a_stream_that_loses_its_end(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """An application that returns in the middle has cut its reply."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await send(start(kind="text/event-stream"))
            await send(chunk(b"data: x\n\n"))

        await serve(app, captured)
        assert outcome(captured) == ("error", "incomplete_stream", True)

    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            (b'data: {"error": {"type": "ServerError", "code": 500}}', ("error", "ServerError")),
            (b'event: error\ndata: {"error": {"type": "overloaded_error"}}', ("rejected", "")),
            (b'{"error": "out of memory"}', ("error", "")),
        ],
    )
    async def test_an_error_event(
        self, captured: CapturedTelemetry, event: bytes, expected: tuple[str, str]
    ) -> None:
        """HTTP 200 was sent already; what the stream says counts."""
        connection = Connection(chat_body(stream=True))
        await serve(streams(event + b"\n\n", b"data: [DONE]\n\n"), captured, connection)
        found = outcome(captured)
        assert found[0] == expected[0]
        assert found[1] == expected[1] or not expected[1]

    @pytest.mark.parametrize("text", [b'{"text": "an \\"error\\" occurred"}', b'{"error": null}'])
    async def test_what_is_no_error_event(self, captured: CapturedTelemetry, text: bytes) -> None:
        """An answer that speaks of errors is an answer."""
        await serve(streams(b"data: " + text + b"\n\n", b"data: [DONE]\n\n"), captured)
        assert outcome(captured)[0] == "ok"

    async def test_the_peer_leaves_before_a_plain_reply_was_made(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Its generation was not over, so nothing after its last token is delivery."""
        connection = Connection()

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await receive()
            live = current_request()
            assert live is not None
            lane = live.recorder.lane()
            for _ in range(2):
                clock.advance(0.010)
                lane.stamps.append(clock.monotonic_ns())
            connection.leave()
            clock.advance(0.050)
            await receive()

        await serve(app, captured, connection)
        found = captured.span(REQUEST).attributes
        assert outcome(captured)[0] == "cancelled"
        assert semconv.phase_us("delivery") not in found
        assert found[semconv.UNACCOUNTED_US] >= 50_000

    @pytest.mark.parametrize("messages", [[], [start(), chunk(b"{")]], ids=["nothing", "half"])
    async def test_a_plain_reply_without_an_end(
        self, captured: CapturedTelemetry, messages: list[Any]
    ) -> None:
        """The server answers 500 or cuts the connection; that is no success."""
        await serve(replies(*messages), captured)
        assert outcome(captured)[0] == "error"


class TestContext:
    """What is current, inside and afterwards."""

    async def test_the_application_runs_below_the_request_span(
        self, captured: CapturedTelemetry
    ) -> None:
        """Spans that it starts are children of the request span."""

        async def app(given: Any, receive: Any, send: Any) -> None:
            with captured.telemetry.tracer.start_as_current_span("app"):
                await ANSWER(given, receive, send)

        await serve(app, captured)
        assert [SERVER, f"  {REQUEST}", "    app"] == captured.tree()

    @pytest.mark.parametrize("fails", [False, True])
    async def test_nothing_leaks(self, captured: CapturedTelemetry, fails: bool) -> None:
        """The context afterwards is the one before, also after an error."""

        async def app(given: Any, receive: Any, send: Any) -> None:
            if fails:
                raise LookupError
            await ANSWER(given, receive, send)

        before = context_api.get_current()
        try:
            await serve(app, captured)
        except LookupError:
            assert fails
        assert before is context_api.get_current()
        assert trace.get_current_span() is trace.INVALID_SPAN

    async def test_many_at_once(self, captured: CapturedTelemetry) -> None:
        """Requests that overlap do not see each other."""

        async def app(given: Any, receive: Any, send: Any) -> None:
            live = current_request()
            await asyncio.sleep(0.001)
            assert live is current_request()
            await ANSWER(given, receive, send)

        await asyncio.gather(*(serve(app, captured) for _ in range(20)))
        parents = [each.parent.span_id for each in captured.spans if each.name == REQUEST]
        assert (len(parents), len(set(parents))) == (20, 20)
