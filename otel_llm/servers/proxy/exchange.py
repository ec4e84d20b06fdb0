"""The spans of one request through the proxy: SERVER, and the request span below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_llm import semconv
from otel_llm.clients.engines import known_at
from otel_llm.clients.reader import ReplyReader
from otel_llm.clock import Anchor
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value, as_count
from otel_llm.guard import guard
from otel_llm.propagation.headers import context_headers, injected, normalised, replaced
from otel_llm.servers.arrival import Arrival, Asked, end_with_request, start_request
from otel_llm.servers.asgi import ServerSettings
from otel_llm.servers.body import Scope, declared
from otel_llm.servers.proxy.connection import Head
from otel_llm.servers.proxy.prefill import LonePrefills
from otel_llm.servers.proxy.reading import Reading, reading_of
from otel_llm.servers.proxy.routes import PROMPTS, as_openai
from otel_llm.servers.proxy.settings import ProxyEngine, ProxySettings
from otel_llm.servers.routes import Route
from otel_llm.servers.scope import http_attributes, model_of
from otel_llm.timeline import Mark, Outcome, Phase, Side, Source, Timeline

Headers = list[tuple[bytes, bytes]]


def carrying(headers: Headers, context: Context, *, trust: bool) -> Headers:
    """*headers* with our context in them; baggage that is trusted stays as it came."""
    fields = injected(context)
    fields.pop("baggage", None)
    return replaced(headers, fields, context_headers(trust=trust))


class Shared:
    """What the requests of one proxy have in common."""

    def __init__(self, settings: ProxySettings, server: ServerSettings) -> None:
        self.settings = settings
        self.server = server
        self.prefills = LonePrefills()
        self.running = 0
        """Requests that were sent on and have not ended."""
        self.lone: Exchange | None = None
        """A request that has met no other yet, and has had no token."""

    @property
    def provider(self) -> str:
        """Who answers, as far as it is known."""
        engine = self.settings.engine
        if engine is not ProxyEngine.AUTO:
            return engine.value
        return known_at(self.settings.upstream.url) or "unknown"


class Arrived(NamedTuple):
    """A request as it came: scope, route, headers, JSON body, and when."""

    scope: Scope
    route: Route
    fields: Mapping[str, str]
    body: dict[str, Any]
    anchor: Anchor


class Exchange:
    """One request whose spans are open. No method raises."""

    def __init__(self, telemetry: Telemetry, shared: Shared, arrived: Arrived) -> None:
        self._telemetry = telemetry
        self._shared = shared
        self._arrived = arrived
        self._finished_ns: int | None = None
        self._server: Span | None = None
        self._status: int | None = None
        self._head: Head | None = None
        self._reading: Reading | None = None
        self._sent_ns: int | None = None
        self._running = False
        self.alone = False
        """Whether it has met no other request before its first token."""
        self.headers: Headers = list(arrived.scope["headers"])
        """The request's headers, with our context in them once the spans have started."""
        self.live: LiveRequest | None = None
        with guard("proxy.start"):
            self._start()
        # A long prompt is not held while its answer lasts.
        self._arrived = arrived._replace(body={"echo": arrived.body.get("echo")})

    def _start(self) -> None:
        scope, route, fields, body, anchor = self._arrived
        server = self._shared.server
        arrival = Arrival.of(fields, server)
        model = model_of(body)
        http: dict[str, Value] = {**http_attributes(scope, route, model), **arrival.who}
        context, self._server = arrival.server_span(
            self._telemetry, http, anchor, trust=server.trust_remote
        )
        self.live = self._request(model, arrival.who, context)
        self.headers = carrying(self.headers, self.live.context, trust=server.trust_remote)

    def _request(self, model: str | None, who: Mapping[str, str], context: Context) -> LiveRequest:
        _, route, _, body, anchor = self._arrived
        live = start_request(
            self._telemetry,
            Asked(route, body, model),
            Side.PROXY,
            provider=self._shared.provider,
            address=self._shared.settings.upstream.address,
            who=who,
            parent=context,
            anchor=anchor,
            parameters_of=as_openai(body),
            prompts=PROMPTS,
        )
        live.on_finish = self._finish_server
        live.recorder.generates = route.operation not in _WITHOUT_TOKENS
        choices = as_count(live.info.attributes.get(semconv.CHOICE_COUNT))
        live.recorder.expected_sequences = choices or 1
        return live

    def sent(self, attempts: int) -> None:
        """The head and the first of the body are on their way."""
        live = self.live
        if live is None:
            return
        recorder, shared = live.recorder, self._shared
        recorder.attempts = attempts
        self._sent_ns = recorder.clock.monotonic_ns()
        if attempts == 1:
            if shared.lone is not None:
                shared.lone.alone = False
            self.alone = shared.running == 0
            shared.lone = self if self.alone else None
            shared.running += 1
            self._running = True

    def answered(self, head: Head) -> None:
        """The head of the answer has come."""
        self._status = head.status
        if self.live is not None:
            self.live.recorder.ending(status=head.status)
            self._head = None if self.live.silent else head

    def _open_reading(self) -> None:
        """Prepare for the body; not before its first piece has passed, which shall not wait."""
        head, self._head = self._head, None
        live = self.live
        if head is None or live is None:
            return
        with guard("proxy.answered"):
            headers = normalised(head.headers)
            url = self._shared.settings.upstream.url
            reader = ReplyReader(live, None, self._arrived.body, url)
            reader.headers(headers)
            limit = self._shared.settings.limits.inspected_bytes
            self._reading = reading_of(live, reader, headers, limit)

    def took(self, data: bytes, came: float, accepted: float) -> None:
        """A piece of the body came, and was accepted by the client's side; monotonic seconds."""
        self._open_reading()
        reading = self._reading
        if reading is None:
            return
        with guard("proxy.took"):
            reading.took(data, came, accepted)
            if self._shared.lone is self and self.live and self.live.recorder.has(Mark.FIRST_TOKEN):
                self._shared.lone = None

    def failed(self, kind: str, status: int | None = None) -> None:
        """The upstream failed; *status* is what the client was told, if it had heard nothing."""
        live = self.live
        self._status = status or self._status
        if live is None:
            return
        if status is not None:
            live.recorder.ending(status=status)
        self._end(whole=False)
        if not live.recorder.ended:
            live.recorder.fail(Outcome.ERROR, kind)

    def raised(self, error: BaseException) -> None:
        """Something ended the exchange from outside: the server is shutting down."""
        if self.live is not None:
            self.live.fail(error)

    def left(self) -> None:
        """The client has gone; that is no loss once the end was handed over."""
        live = self.live
        if live is not None and not live.finished:
            self._end(whole=False)
            if not live.recorder.ended:
                live.recorder.ending(peer_gone=True)

    def delivered(self, at: float) -> None:
        """The last piece was accepted, at that monotonic second."""
        self._finished_ns = round(at * 1e9)
        self._end(whole=True)

    def close(self) -> None:
        """End the spans; a further call does nothing."""
        self._end(whole=False)
        if self._running:
            self._running = False
            self._shared.running -= 1
        if self._shared.lone is self:
            self._shared.lone = None
        if self.live is not None:
            with guard("proxy.close"):
                self._estimate(self.live)
            self.live.finish(self._finished_ns)
        elif self._server is not None:
            server, self._server = self._server, None
            server.end()

    def _end(self, *, whole: bool) -> None:
        self._open_reading()
        reading, self._reading = self._reading, None
        if reading is not None:
            with guard("proxy.ended"):
                reading.ended(whole=whole)

    def _estimate(self, live: LiveRequest) -> None:
        """Queue and prefill of a stream whose engine does not tell: what can be known of them.

        A queue that an engine leaves out beside its prefill is what that leaves of the wait.
        """
        recorder, sent = live.recorder, self._sent_ns
        if sent is None or not recorder.has(Mark.FIRST_TOKEN) or self._is_far:
            return
        seen = recorder.evidence()
        if seen.reported_total_ns is not None or Phase.QUEUE in seen.reported:
            return
        first = recorder.anchor.monotonic(seen.marks[Mark.FIRST_TOKEN].at_ns)
        prefill = seen.reported.get(Phase.PREFILL)
        if prefill is None:
            prefill = self._lone_prefill(first - sent)
        if prefill is not None:
            recorder.mark(Mark.QUEUED, sent, Source.ESTIMATED)
            recorder.mark(Mark.SCHEDULED, max(sent, first - prefill), Source.ESTIMATED)

    def _lone_prefill(self, waited_ns: int) -> int | None:
        prefills, model = self._shared.prefills, (self.live and self.live.info.model) or ""
        size = declared(self._arrived.fields)
        if self.alone:
            prefills.learn(model, size, waited_ns)
            return waited_ns
        return prefills.estimate(model, size)

    @property
    def _is_far(self) -> bool:
        """Whether it is a cloud that answers, most of whose requests are not seen here."""
        return self._shared.settings.engine is ProxyEngine.OPENAI

    def _finish_server(self, timeline: Timeline) -> None:
        server, self._server = self._server, None
        if server is not None:
            end_with_request(server, timeline, self._status)


_WITHOUT_TOKENS = frozenset({"embeddings", "rerank", "score", "classify"})
