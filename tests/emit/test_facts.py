"""Facts of the application: events, and the current request from anywhere in its handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_llm
from otel_llm import config, guard
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.fakes.asgi import App, chunk, replies, start
from tests.servers.builders import REQUEST, serve
from tests.tracing.builders import NAME, in_force, request

__all__ = ["in_force"]


def events(captured: CapturedTelemetry, name: str = NAME) -> list[tuple[str, dict[str, Any]]]:
    """Names and attributes of the events of the one span of that name."""
    return [(each.name, dict(each.attributes)) for each in captured.span(name).events]


def handler(act: Any) -> App:
    """An application that does something and answers."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        act()
        await replies(start(), chunk(b"{}", more=False))(scope, receive, send)

    return app


class TestEvent:
    """`r.event`."""

    def test_name_time_and_attributes(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """At the instant it is written, its values cleaned."""
        with request() as r:
            clock.advance(0.25)
            r.event("cart.checked", {"items": 3, "no": None, "bad": float("nan")})
        (event,) = in_force.span(NAME).events
        assert (event.name, event.attributes) == ("cart.checked", {"items": 3})
        assert event.timestamp == in_force.span(NAME).start_time + 250_000_000

    def test_without_attributes(self, in_force: CapturedTelemetry) -> None:
        """A name is enough."""
        with request() as r:
            r.event("retrieved")
        assert events(in_force) == [("retrieved", {})]

    def test_a_wall_clock_that_is_set(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Events lie on the request's own timeline."""
        with request() as r:
            clock.step_wall(-3600)
            r.event("late")
        (event,) = in_force.span(NAME).events
        assert event.timestamp == in_force.span(NAME).start_time

    def test_their_number_is_bounded(self, in_force: CapturedTelemetry) -> None:
        """The SDK keeps as many as its limit says, and the span says how many are missing."""
        with request() as r:
            for number in range(200):
                r.event(f"e{number}")
        span = in_force.span(NAME)
        assert (len(span.events), span.dropped_events) == (128, 72)

    @pytest.mark.parametrize("name", ["x" * 999, "cut \ud83e"])
    def test_names_can_be_exported(self, in_force: CapturedTelemetry, name: str) -> None:
        """Not too long, and no half an emoji."""
        with request() as r:
            r.event(name)
        ((found, _),) = events(in_force)
        assert len(found.encode()) <= 128

    def test_after_the_end(self, in_force: CapturedTelemetry) -> None:
        """Too late is not an error."""
        with request() as r:
            pass
        r.event("late")
        assert events(in_force) == []

    def test_never_raises(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever it is given, the request goes on."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        with request() as r:
            r.event("odd", 7)  # type: ignore[arg-type]
        assert events(in_force) == []
        assert guard.failures["trace_request.event"] == 1

    def test_sampled_out(self, clock: ManualClock) -> None:
        """No span, no event."""
        config.RUNTIME.telemetry = captured_telemetry(sampler=ALWAYS_OFF, clock=clock).telemetry
        with request() as r:
            r.event("unseen", {"value": 1})


class TestCurrent:
    """`otel_llm.annotate` and `otel_llm.event`."""

    async def test_in_a_handler(self, captured: CapturedTelemetry) -> None:
        """The request span of the server gets them, and no other span."""

        def act() -> None:
            otel_llm.annotate({"customer.plan": "gold", "no": None})
            otel_llm.event("checked", {"items": 3})

        await serve(handler(act), captured)
        assert captured.span(REQUEST).attributes["customer.plan"] == "gold"
        assert events(captured, REQUEST) == [("checked", {"items": 3})]

    async def test_in_a_task_and_a_thread(self, captured: CapturedTelemetry) -> None:
        """Wherever the handler's context goes."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.create_task(later())
            await asyncio.to_thread(otel_llm.annotate, {"from.thread": 1})
            await replies(start(), chunk(b"{}", more=False))(scope, receive, send)

        async def later() -> None:
            otel_llm.annotate({"from.task": 1})

        await serve(app, captured)
        found = captured.span(REQUEST).attributes
        assert (found.get("from.task"), found.get("from.thread")) == (1, 1)

    def test_in_an_active_request(self, in_force: CapturedTelemetry) -> None:
        """The one that was made active, for as long as it is."""
        with request() as r:
            with r.active():
                otel_llm.annotate({"inside": 1})
                otel_llm.event("inside")
            otel_llm.annotate({"outside": 1})
        found = in_force.span(NAME).attributes
        assert ("inside" in found, "outside" in found) == (True, False)
        assert events(in_force) == [("inside", {})]

    async def test_the_nearest(self, in_force: CapturedTelemetry) -> None:
        """A call made active in a handler, and after it the handler's own request."""

        def act() -> None:
            with request(model="inner") as r, r.active():
                otel_llm.annotate({"whose": "inner"})
            otel_llm.annotate({"whose": "outer"})

        await serve(handler(act), in_force)
        found = [in_force.span(each).attributes["whose"] for each in ("chat inner", REQUEST)]
        assert found == ["inner", "outer"]

    async def test_a_server_below_an_active_call(self, in_force: CapturedTelemetry) -> None:
        """A server in the same process, called by the client's request."""
        with request(model="outer") as r, r.active():
            await serve(handler(lambda: otel_llm.annotate({"whose": "server"})), in_force)
        assert in_force.span(REQUEST).attributes["whose"] == "server"
        assert "whose" not in in_force.span("chat outer").attributes

    async def test_an_active_request_that_has_ended(self, in_force: CapturedTelemetry) -> None:
        """The handler's own is still open."""

        def act() -> None:
            inner = request(model="inner")
            with inner as r:
                active = r.active()
                active.__enter__()
            otel_llm.annotate({"whose": "server"})
            active.__exit__(None, None, None)

        await serve(handler(act), in_force)
        assert in_force.span(REQUEST).attributes["whose"] == "server"

    def test_engines_do_not_take_it_for_their_own(self, in_force: CapturedTelemetry) -> None:
        """An engine called below an active request has a request span of its own."""
        from otel_llm.emit.live import current_request

        with request() as r, r.active():
            assert current_request() is None

    def test_without_a_request(self, in_force: CapturedTelemetry) -> None:
        """Nothing happens."""
        otel_llm.annotate({"customer.plan": "gold"})
        otel_llm.event("checked")
        assert in_force.spans == []

    @pytest.mark.parametrize(
        ("call", "place"),
        [
            (lambda: otel_llm.annotate(7), "annotate"),  # type: ignore[arg-type]
            (lambda: otel_llm.event("x", 7), "event"),  # type: ignore[arg-type]
        ],
    )
    async def test_never_raises(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, call: Any, place: str
    ) -> None:
        """A wrong argument is counted, and the reply goes out."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        connection = await serve(handler(call), captured)
        assert len(connection.sent) == 2
        assert guard.failures[place] == 1
