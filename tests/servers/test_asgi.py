"""The ASGI middleware: two spans per inference request, and nothing else touched."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import baggage
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind

from otel_llm import semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.propagation.identity import parse_keys
from otel_llm.servers.asgi import InferenceMiddleware, ServerSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import Spy
from tests.fakes.asgi import (
    CHAT,
    App,
    Connection,
    body,
    chat_body,
    chunk,
    replies,
    scope,
    start,
    streams,
)
from tests.servers.builders import (
    ANSWER,
    PARENT,
    REQUEST,
    SERVER,
    SPAN_ID,
    TRACE_ID,
    pair,
    serve,
)

IDENTITY = {"x-tenant": "acme", "baggage": "plan=gold,user.id=u42"}


def seen_headers(into: list[dict[str, str]]) -> App:
    """An application that notes the trace headers that it is given."""

    async def app(given: Any, receive: Any, send: Any) -> None:
        pairs = [(name.decode(), value.decode()) for name, value in given["headers"]]
        assert len(pairs) == len(dict(pairs)), "a header is there twice"
        into.append(dict(pairs))
        await ANSWER(given, receive, send)

    return app


class TestSpans:
    """One SERVER span, and the request span below it."""

    async def test_shape(self, captured: CapturedTelemetry) -> None:
        """A parent of kind SERVER, a child of kind INTERNAL, and no more."""
        await serve(ANSWER, captured)
        server, request = pair(captured)
        assert [SERVER, f"  {REQUEST}"] == captured.tree()
        assert (server.kind, request.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)

    async def test_both_begin_at_arrival(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """The time in which the body came in belongs to the request."""
        arrival = clock.wall_ns()

        class Slow(Connection):
            """A peer that takes 200 ms to send its body."""

            async def receive(self) -> Any:
                clock.advance(0.2)
                return await super().receive()

        await serve(ANSWER, captured, Slow())
        assert [arrival, arrival] == [each.start_time for each in pair(captured)]
        assert captured.span(REQUEST).attributes[semconv.E2E_US] == 200_000

    async def test_both_end_together(self, captured: CapturedTelemetry) -> None:
        """The SERVER span says no other length than the request span."""
        await serve(ANSWER, captured)
        server, request = pair(captured)
        assert server.end_time == request.end_time

    async def test_http_attributes_are_on_the_server_span(
        self, captured: CapturedTelemetry
    ) -> None:
        """Method, route, path, scheme, address and status, under the stable names."""
        await serve(ANSWER, captured, path="/llm/v1/chat/completions")
        expected = {
            "http.request.method": "POST",
            "http.route": CHAT,
            "url.path": "/llm/v1/chat/completions",
            "url.scheme": "http",
            "network.protocol.version": "1.1",
            "server.address": "127.0.0.1",
            "server.port": 8000,
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
        }
        assert expected == dict(captured.span(SERVER).attributes)

    async def test_the_request_span_says_what_was_asked(self, captured: CapturedTelemetry) -> None:
        """Identity and parameters from the body, and the route."""
        settings = ServerSettings(provider="demo")
        connection = Connection(chat_body(stream=True, max_tokens=16))
        await serve(streams(), captured, connection, settings)
        found = captured.span(REQUEST).attributes
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "demo",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": 16,
            "http.route": CHAT,
            "otel_llm.side": "server",
        }
        assert expected == {name: found.get(name) for name in expected}

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            (b'{"model": "tiny"}', "chat tiny"),
            (b"not json", "chat"),
            (b'{"model": null}', "chat"),
            (b'{"model": ["tiny"]}', "chat"),
            (b'{"model": ""}', "chat"),
            (b'{"model": "half \\ud83e"}', "chat half \ufffd"),
        ],
    )
    async def test_the_model_as_far_as_it_is_known(
        self, captured: CapturedTelemetry, given: bytes, name: str
    ) -> None:
        """Without a model the span is called after its operation alone."""
        await serve(ANSWER, captured, Connection(body(given)))
        assert [SERVER, f"  {name}"] == captured.tree()

    async def test_a_model_name_of_any_length(self, captured: CapturedTelemetry) -> None:
        """It comes from the network and is cut."""
        await serve(ANSWER, captured, Connection(body(b'{"model": "%s"}' % (b"m" * 9000))))
        assert f"  chat {'m' * 256}" == captured.tree()[1]

    async def test_uploads_have_no_model(self, captured: CapturedTelemetry) -> None:
        """Audio is not read ahead; the request is traced all the same."""
        form = {"content-type": "multipart/form-data; boundary=x"}
        await serve(
            ANSWER, captured, Connection(body(b"--x")), path="/v1/audio/translations", headers=form
        )
        assert captured.tree() == ["POST /v1/audio/translations", "  translation"]

    async def test_a_unix_socket(self, captured: CapturedTelemetry) -> None:
        """A server without a port has no port."""
        await serve(ANSWER, captured, server=("/run/app.sock", None))
        assert semconv.SERVER_PORT not in captured.span(SERVER).attributes

    async def test_no_server_address(self, captured: CapturedTelemetry) -> None:
        """Nor is an unknown address written."""
        await serve(ANSWER, captured, server=None)
        assert semconv.SERVER_ADDRESS not in captured.span(SERVER).attributes


class TestTrace:
    """Whose trace it is."""

    async def test_joins_the_callers(self, captured: CapturedTelemetry) -> None:
        """The caller's span is the parent of the SERVER span."""
        await serve(ANSWER, captured, headers={"traceparent": PARENT})
        server, request = pair(captured)
        assert (server.context.trace_id, server.parent.span_id) == (TRACE_ID, SPAN_ID)
        assert request.context.trace_id == TRACE_ID

    async def test_an_untrusted_caller_is_linked(self, captured: CapturedTelemetry) -> None:
        """A new root, with a link to where the request came from."""
        untrusting = ServerSettings(trust_remote=False)
        await serve(ANSWER, captured, settings=untrusting, headers={"traceparent": PARENT})
        server, _ = pair(captured)
        assert server.parent is None
        assert server.context.trace_id != TRACE_ID
        assert [(each.context.trace_id, each.context.span_id) for each in server.links] == [
            (TRACE_ID, SPAN_ID)
        ]

    @pytest.mark.parametrize(("trust", "kept"), [(True, 0), (False, 2)])
    async def test_an_unsampled_caller(self, clock: ManualClock, trust: bool, kept: int) -> None:
        """Its flag is obeyed where it is trusted; metrics are recorded either way."""
        captured = captured_telemetry(sampler=ParentBased(ALWAYS_ON), clock=clock)
        settings = ServerSettings(trust_remote=trust)
        await serve(ANSWER, captured, settings=settings, headers={"traceparent": PARENT[:-1] + "0"})
        assert kept == len(captured.spans)
        assert captured.points(semconv.SERVER_DURATION)[0].count == 1

    async def test_without_a_caller(self, captured: CapturedTelemetry) -> None:
        """A new trace without links."""
        await serve(ANSWER, captured)
        server, _ = pair(captured)
        assert (server.parent, len(server.links)) == (None, 0)

    @pytest.mark.parametrize("value", ["", "garbage", PARENT.replace("1111", "zzzz"), "\xff" * 9])
    async def test_a_broken_header(self, captured: CapturedTelemetry, value: str) -> None:
        """A new trace; the request is served."""
        connection = await serve(ANSWER, captured, headers={"traceparent": value})
        assert (captured.span(SERVER).parent, len(connection.sent)) == (None, 2)

    async def test_a_span_of_the_application_is_used(self, captured: CapturedTelemetry) -> None:
        """Below a SERVER span of somebody else's, only the request span is made."""
        with captured.telemetry.tracer.start_as_current_span("theirs", kind=SpanKind.SERVER):
            await serve(ANSWER, captured, headers={"traceparent": PARENT})
        assert ["theirs", f"  {REQUEST}"] == captured.tree()

    async def test_samplers_see_the_model(self) -> None:
        """Already where the SERVER span starts, for it decides for the whole trace."""
        spy = Spy()
        await serve(ANSWER, captured_telemetry(sampler=spy))
        seen = [(name, attributes.get("gen_ai.request.model")) for name, attributes in spy.seen]
        assert seen[:2] == [(SERVER, "tiny"), (REQUEST, "tiny")]


class TestHeaders:
    """What the application finds in its headers."""

    async def test_our_context_once(self, captured: CapturedTelemetry) -> None:
        """Whoever reads them below becomes a child of the request span."""
        seen: list[dict[str, str]] = []
        await serve(seen_headers(seen), captured, headers={"TraceParent": PARENT, "x-a": "1"})
        span_id = f"{captured.span(REQUEST).context.span_id:016x}"
        assert (span_id, "1") == (seen[0]["traceparent"].split("-")[2], seen[0]["x-a"])
        assert "TraceParent" not in seen[0]

    async def test_none_where_none_came(self, captured: CapturedTelemetry) -> None:
        """Without a caller's trace nothing is added."""
        seen: list[dict[str, str]] = []
        await serve(seen_headers(seen), captured)
        assert seen == [{"content-type": "application/json"}]

    async def test_always_on_request(self, captured: CapturedTelemetry) -> None:
        """An engine with spans of its own is told of ours in any case."""
        seen: list[dict[str, str]] = []
        await serve(seen_headers(seen), captured, settings=ServerSettings(inject=True))
        assert f"{captured.span(REQUEST).context.trace_id:032x}" in seen[0]["traceparent"]

    async def test_the_servers_scope_is_not_changed(self, captured: CapturedTelemetry) -> None:
        """The application gets a copy."""
        given = scope(headers={"traceparent": PARENT})
        before = {**given, "headers": list(given["headers"])}
        connection = Connection()
        wrapped = InferenceMiddleware(ANSWER, captured.telemetry)
        await wrapped(given, connection.receive, connection.send)
        assert before == given

    async def test_baggage_goes_on(self, captured: CapturedTelemetry) -> None:
        """It is in the context of the application, and still in its headers."""
        seen: list[Any] = []

        async def app(given: Any, receive: Any, send: Any) -> None:
            seen.extend([baggage.get_baggage("plan"), dict(given["headers"])[b"baggage"]])
            await ANSWER(given, receive, send)

        await serve(app, captured, headers={"traceparent": PARENT, "baggage": "plan=gold"})
        assert seen == ["gold", b"plan=gold"]

    async def test_nothing_of_an_untrusted_caller(self, captured: CapturedTelemetry) -> None:
        """Its trace state and baggage would go on under our trace otherwise."""
        seen: list[dict[str, str]] = []
        strange = {"traceparent": PARENT, "tracestate": "ot=th:8", "baggage": "plan=gold"}
        untrusting = ServerSettings(trust_remote=False)
        await serve(seen_headers(seen), captured, settings=untrusting, headers=strange)
        assert not {"tracestate", "baggage"} & set(seen[0])
        assert f"{captured.span(REQUEST).context.trace_id:032x}" in seen[0]["traceparent"]

    async def test_trace_state_goes_with_its_parent(self, captured: CapturedTelemetry) -> None:
        """What the sampler made of it, never the old one beside a new parent."""
        seen: list[dict[str, str]] = []
        trusted = {"traceparent": PARENT, "tracestate": "ot=th:8;rv:abcdef12345678"}
        await serve(seen_headers(seen), captured, headers=trusted)
        state = captured.span(REQUEST).context.trace_state
        assert state.to_header() == seen[0].get("tracestate", "")


class TestIdentity:
    """Who the request belongs to."""

    KEYS = ServerSettings(
        context_keys=parse_keys("tenant=header:X-Tenant, plan, user=baggage:user.id:hash")
    )

    async def test_from_headers_and_baggage(self, captured: CapturedTelemetry) -> None:
        """The allow-listed ones, hashed on request."""
        await serve(ANSWER, captured, settings=self.KEYS, headers=IDENTITY)
        found = captured.span(REQUEST).attributes
        names = ("otel_llm.tenant", "otel_llm.context.plan", "otel_llm.context.user")
        hashed = hashlib.sha256(b"u42").hexdigest()[:16]
        assert ["acme", "gold", hashed] == [found[name] for name in names]

    async def test_others_are_not_written(self, captured: CapturedTelemetry) -> None:
        """Without a list, nothing of them is."""
        await serve(ANSWER, captured, headers=IDENTITY)
        assert "acme" not in str([dict(each.attributes) for each in captured.spans])

    async def test_samplers_see_them(self) -> None:
        """They are there when the request span starts."""
        spy = Spy()
        await serve(ANSWER, captured_telemetry(sampler=spy), settings=self.KEYS, headers=IDENTITY)
        assert dict(spy.seen)[REQUEST]["otel_llm.tenant"] == "acme"

    async def test_a_sampler_that_decides_by_tenant(self) -> None:
        """Our SERVER span is the root: children follow its decision, so it must know the tenant."""
        spy = Spy()
        captured = captured_telemetry(sampler=spy)
        await serve(ANSWER, captured, settings=self.KEYS, headers=IDENTITY)
        assert dict(spy.seen)[SERVER]["otel_llm.tenant"] == "acme"


class TestUntouched:
    """What is no inference request."""

    @pytest.mark.parametrize(
        "given",
        [
            scope("/v1/models"),
            scope("/health", method="GET"),
            scope(CHAT, method="GET"),
            {"type": "lifespan"},
        ],
        ids=lambda given: f"{given['type']} {given.get('path', '')}",
    )
    async def test_the_same_three_objects(
        self, captured: CapturedTelemetry, given: dict[str, Any]
    ) -> None:
        """Scope, receive and send reach the application themselves, without a span."""
        seen: list[Any] = []

        async def app(*got: Any) -> None:
            seen.extend(got)

        connection = Connection()
        receive, send = connection.receive, connection.send
        await InferenceMiddleware(app, captured.telemetry)(given, receive, send)
        assert [id(given), id(receive), id(send)] == [id(each) for each in seen]
        assert captured.spans == []

    async def test_without_telemetry(self) -> None:
        """A process whose settings are wrong serves as if nothing were installed."""
        connection = await Connection().serve(InferenceMiddleware(ANSWER, lambda: None))
        assert len(connection.sent) == 2

    async def test_twice_around_the_same_application(self, captured: CapturedTelemetry) -> None:
        """One request is one request."""
        inner = InferenceMiddleware(ANSWER, captured.telemetry)
        await serve(inner, captured)
        assert [SERVER, f"  {REQUEST}"] == captured.tree()

    async def test_the_reply_is_passed_on_unchanged(self, captured: CapturedTelemetry) -> None:
        """The very messages, in order."""
        messages = [start(), *map(chunk, (b"a", b"", b":c")), chunk(b"end", more=False)]
        connection = await serve(replies(*messages), captured)
        assert [id(each) for each in messages] == [id(each) for each in connection.sent]

    async def test_around_an_application_with_fastapis_own_tracing(
        self, captured: CapturedTelemetry
    ) -> None:
        """Exactly one SERVER span, also where the middleware is put around everything."""
        own = {"tracing": True, "metrics": False, "logs": False, "auto_configure": False}
        app = FastAPI(telemetry={**own, "tracer_provider": captured.tracer_provider})

        @app.post(CHAT)
        async def chat(_body: dict[str, Any]) -> dict[str, Any]:
            return {}

        await serve(app, captured, headers={"traceparent": PARENT})
        kinds = [each.kind for each in captured.spans]
        assert kinds.count(SpanKind.SERVER) == 1


class TestContent:
    """The prompt, only on request."""

    @pytest.mark.parametrize(
        ("path", "field"),
        [(CHAT, "messages"), ("/v1/completions", "prompt"), ("/v1/responses", "input")],
    )
    async def test_switched_on(self, clock: ManualClock, path: str, field: str) -> None:
        """Wherever a route keeps it."""
        captured = captured_telemetry(EmitSettings(capture_content=True), clock=clock)
        connection = Connection(body(b'{"model": "tiny", "%s": "hello"}' % field.encode()))
        await serve(ANSWER, captured, connection, path=path)
        (request,) = [each for each in captured.spans if each.kind is SpanKind.INTERNAL]
        shown = json.loads(request.attributes[semconv.INPUT_MESSAGES])
        assert shown == [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]

    async def test_off_by_default(self, captured: CapturedTelemetry) -> None:
        """Nothing of the prompt or the reply is on any span."""
        connection = Connection(body(b'{"model": "tiny", "messages": "secret"}'))
        await serve(streams(b"secret"), captured, connection)
        assert "secret" not in str([each.to_json() for each in captured.spans])


async def test_telemetry_that_fails_does_not_stop_a_request(
    captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that breaks costs the spans, never the reply."""

    class Broken(Spy):
        """A sampler with a fault."""

        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError

    monkeypatch.setenv("OTEL_LLM_STRICT", "0")
    connection = await serve(ANSWER, captured_telemetry(sampler=Broken()))
    assert len(connection.sent) == 2
