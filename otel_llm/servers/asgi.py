"""ASGI middleware: one SERVER span, one request span below it, first and last delivered byte.

It wraps the whole application. For inference routes it reads the JSON body first (so that
samplers see the model), joins the caller's trace, and ends the spans when the last byte was
handed over or the peer left; work after that is not counted. Chunks pass at once, unchanged.
A SERVER span that another library has opened (FastAPI's own, contrib's) is used, not doubled.
A WebSocket connection gets a SERVER span alone (`otel_llm.servers.websocket`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as context_api
from opentelemetry.trace import Span

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.live import NOTHING_KNOWN, LiveRequest, current_request
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.propagation.headers import (
    context_headers,
    header_names,
    injected,
    normalised,
    replaced,
)
from otel_llm.propagation.identity import IdentityKey
from otel_llm.servers.arrival import Arrival, Asked, end_with_request, resolved, start_request
from otel_llm.servers.body import App, BodyAhead, Message, Receive, Scope, Send
from otel_llm.servers.reply import StreamedBody, error_event, has_data
from otel_llm.servers.routes import Route, route_of
from otel_llm.servers.scope import address_of, http_attributes, model_of
from otel_llm.servers.websocket import Connection
from otel_llm.timeline import Mark, Outcome, Side, Timeline

INCOMPLETE_RESPONSE = "incomplete_response"
_BODY_HEADERS = frozenset({b"content-type", b"content-length"})
_STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How requests that arrive are treated.

    With `trust_remote` False an incoming trace is linked, not joined. `inject` adds trace headers
    for the application also when the caller sent none.
    """

    provider: str = "unknown"
    trust_remote: bool = True
    context_keys: tuple[IdentityKey, ...] = ()
    inject: bool = False


class InferenceMiddleware:
    """Pure ASGI middleware for an application that serves models.

    Args:
        app: The ASGI application.
        telemetry: Where spans and metrics go, or a callable that says so at each request.
        settings: How requests that arrive are treated, or a callable that says so.
    """

    def __init__(
        self,
        app: App,
        telemetry: Telemetry | Callable[[], Telemetry | None],
        settings: ServerSettings | Callable[[], ServerSettings] | None = None,
    ) -> None:
        self.app = app
        self._inside = _put_inside(app, self)
        self._telemetry = telemetry
        self._settings = settings or ServerSettings()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; all but inference requests and WebSockets pass untouched."""
        if self._inside:
            await self.app(scope, receive, send)
        else:
            await self.serve(self.app, scope, receive, send)

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection with *app*."""
        route = None
        if scope["type"] == "http" and current_request() is None:
            route = route_of(scope.get("method", ""), scope.get("path", ""))
        wanted = route is not None or scope["type"] == "websocket"
        telemetry = resolved(self._telemetry) if wanted else None
        if telemetry is None:
            await app(scope, receive, send)
            return
        anchor = Anchor.take(telemetry.clock)
        settings = self._settings
        given = settings if isinstance(settings, ServerSettings) else settings()
        headers = normalised(_read(scope, given))
        if route is not None:
            exchange = _Exchange(telemetry, given, route, anchor)
            await exchange.serve(app, scope, headers, receive, send)
        else:
            await Connection(telemetry, given, anchor).serve(app, scope, headers, receive, send)


class InsideMiddleware:
    """The place of an `InferenceMiddleware` that was put around a Starlette application.

    Inside the application, so that a SERVER span of its own is there when we look for one.
    """

    def __init__(self, app: App, outer: InferenceMiddleware) -> None:
        self.app = app
        self.outer = outer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await self.outer.serve(self.app, scope, receive, send)


def _put_inside(app: Any, outer: InferenceMiddleware) -> bool:
    """Move into a Starlette or FastAPI application that has not started; False for any other."""
    rows = getattr(app, "user_middleware", None)
    if not isinstance(rows, list) or getattr(app, "middleware_stack", app) is not None:
        return False
    from starlette.middleware import Middleware

    rows.insert(0, Middleware(InsideMiddleware, outer=outer))
    return True


class _Exchange:
    """One request and its reply."""

    def __init__(
        self, telemetry: Telemetry, settings: ServerSettings, route: Route, anchor: Anchor
    ) -> None:
        self.telemetry = telemetry
        self.settings = settings
        self.route = route
        self.anchor = anchor
        self.live: LiveRequest | None = None
        self.server: Span | None = None
        self.status: int | None = None
        self.body = StreamedBody()
        self._awaiting_token = False
        self._uploading = True

    async def serve(
        self, app: App, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Run the application with the request span current, and end it on every way out."""
        ahead = BodyAhead(receive)
        body = await ahead.read(headers) if self.route.json else {}
        uploaded_ns = self.telemetry.clock.monotonic_ns() if ahead.whole else None
        with guard("asgi.start"):
            scope = self._start(scope, headers, body)
        live = self.live
        if live is None:
            with guard("asgi.not_started"):
                self._finish_server(NOTHING_KNOWN)
            await app(scope, ahead.receive, send)
            return
        if uploaded_ns is not None:
            self._uploaded(live, uploaded_ns)
        token = context_api.attach(live.context)
        try:
            await app(scope, self._receive(ahead, live), self._send(send, live))
        except BaseException as error:
            live.fail(error)
            raise
        finally:
            context_api.detach(token)
            self._returned(live)

    def _start(self, scope: Scope, headers: Mapping[str, str], body: dict[str, Any]) -> Scope:
        """Open the spans; returns the scope for the application, our context in its headers."""
        arrival = Arrival.of(headers, self.settings)
        model = model_of(body)
        http = {**http_attributes(scope, self.route, model), **arrival.who}
        parent, self.server = arrival.server_span(
            self.telemetry, http, self.anchor, trust=self.settings.trust_remote
        )
        live = start_request(
            self.telemetry,
            Asked(self.route, body, model),
            Side.SERVER,
            provider=self.settings.provider,
            address=address_of(scope),
            who=arrival.who,
            parent=parent,
            anchor=self.anchor,
        )
        self._awaiting_token = live.recorder.streaming
        live.on_finish = self._finish_server
        self.live = live
        if not (self.settings.inject or "traceparent" in headers):
            return scope
        fields = injected(live.context)
        without = context_headers(trust=self.settings.trust_remote)
        passed = replaced(scope.get("headers", ()), fields, without)
        return {**scope, "headers": passed}

    def _receive(self, ahead: BodyAhead, live: LiveRequest) -> Receive:
        async def receive() -> Message:
            message = await ahead.receive()
            if message["type"] == "http.disconnect" and not live.finished:
                live.recorder.ending(peer_gone=True)
                live.finish()
            elif self._uploading and not message.get("more_body", False):
                self._uploaded(live, live.recorder.clock.monotonic_ns())
            return message

        return receive

    def _uploaded(self, live: LiveRequest, at_ns: int) -> None:
        """The whole of the request's body has come in."""
        self._uploading = False
        live.annotate({semconv.UPLOAD_US: (at_ns - self.anchor.monotonic_ns + 500) // 1000})

    def _send(self, send: Send, live: LiveRequest) -> Send:
        clock = live.recorder.clock.monotonic_ns
        reply = self.body

        async def deliver(message: Message) -> None:
            due = self._awaiting_token and live.recorder.has_output
            try:
                await send(message)
            except OSError:
                live.recorder.ending(peer_gone=True)
                raise
            if message["type"] == "http.response.body":
                body = message.get("body", b"")
                if due:
                    self._first_delivered(live, body, clock())
                if live.recorder.streaming and (reply.silent or b'"error"' in bytes(body)):
                    with guard("asgi.body"):
                        self._look(live, bytes(body))
                if not message.get("more_body", False):
                    self._last_delivered(live, clock())
            elif message["type"] == "http.response.start":
                with guard("asgi.started"):
                    self._started(live, message)

        return deliver

    def _look(self, live: LiveRequest, body: bytes) -> None:
        if self.body.silent:
            self.body.look(body)
        if b'"error"' in body:
            error_event(live, body)

    def _started(self, live: LiveRequest, message: Message) -> None:
        """Read the reply's status, and from its type whether it is a stream after all."""
        self.status = message["status"]
        live.recorder.ending(status=self.status)
        if message["status"] >= 400:
            live.recorder.streaming = self._awaiting_token = False
        elif any(
            name.lower() == b"content-type" and value.lower().startswith(_STREAM_TYPES)
            for name, value in message.get("headers", ())
        ):
            live.recorder.streaming = self._awaiting_token = True

    def _returned(self, live: LiveRequest) -> None:
        """The application is done; a plain reply that never came to its end has failed."""
        if not live.finished and not live.recorder.streaming:
            live.recorder.fail(Outcome.ERROR, INCOMPLETE_RESPONSE)
        live.finish()

    def _last_delivered(self, live: LiveRequest, at_ns: int) -> None:
        """The last chunk was accepted. Where no engine tells of its end, this was it."""
        recorder = live.recorder
        if not live.finished and not recorder.calls:
            empty = recorder.streaming and self.body.end()
            recorder.ending(terminator=empty, end_record=not empty)
        live.finish(at_ns)

    def _first_delivered(self, live: LiveRequest, body: bytes, at_ns: int) -> None:
        """The first chunk accepted after the first token; comments and empty chunks are none."""
        with guard("asgi.first_delivered"):
            if not has_data(body):
                return
            live.recorder.mark(Mark.FIRST_DELIVERED, at_ns)
            self._awaiting_token = False

    def _finish_server(self, timeline: Timeline) -> None:
        """The request has ended, whoever ended it; so does the SERVER span, if it is ours."""
        server, self.server = self.server, None
        if server is not None:
            end_with_request(server, timeline, self.status)


def _read(scope: Scope, settings: ServerSettings) -> list[tuple[bytes, bytes]]:
    """Those headers of the request that we look at; most requests have many others."""
    wanted = _wanted(header_names(), settings.context_keys)
    return [each for each in scope.get("headers", ()) if each[0].lower() in wanted]


@functools.lru_cache(maxsize=8)
def _wanted(names: frozenset[bytes], keys: tuple[IdentityKey, ...]) -> frozenset[bytes]:
    return _BODY_HEADERS | names | {each.key.encode() for each in keys}
