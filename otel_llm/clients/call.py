"""One call of a client library: its span, its headers, its reply or stream, and its failure."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import propagate
from opentelemetry.context import Context

from otel_llm import semconv
from otel_llm.adapters.registry import Host
from otel_llm.clients import network
from otel_llm.clients.beside import foreign_span, is_suppressed, is_theirs
from otel_llm.clients.engines import known_at
from otel_llm.clients.failures import note_failure
from otel_llm.clients.reader import ReplyReader
from otel_llm.clients.stream import ClientStream
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo, request_parameters
from otel_llm.emit.settings import Beside
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value, as_count, as_text
from otel_llm.guard import guard
from otel_llm.propagation.identity import identity
from otel_llm.replies import Dialect
from otel_llm.timeline import Mark, Side

LONGEST_NAME = 256
_PROMPTS = ("messages", "input", "inputs", "prompt")
_CALL = context_api.create_key("otel-llm-client-call")


class Target(NamedTuple):
    """What is called: the operation, by whom it is answered, and the body that is sent.

    `provider` is what the library says; at a `base_url` that has answered before, it is the
    engine that was recognised there.
    """

    operation: str
    provider: str
    base_url: str
    body: Mapping[str, object]
    server_address: str | None = None
    server_port: int | None = None


class ClientCall:
    """One open call, made by `start`. No method raises, save what the application does itself."""

    __slots__ = ("__weakref__", "_sent", "library", "live", "reader")

    def __init__(self, live: LiveRequest, reader: ReplyReader, library: object) -> None:
        self._sent = 0
        self.live = live
        self.reader = reader
        self.library = library
        """The client object that was called, so that calls within it are known as the same."""

    @property
    def context(self) -> Context:
        """The context in which the request is sent: the call's span, and the call itself.

        The call only weakly: connections keep the context in which they were opened.
        """
        return context_api.set_value(_CALL, weakref.ref(self), self.live.context)

    @contextmanager
    def sends(self) -> Iterator[None]:
        """Around the library's own function: its context is current, what it raises ends the call.

        Never around a `yield`.
        """
        token = context_api.attach(self.context)
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            context_api.detach(token)

    @property
    def silent(self) -> bool:
        """True if nothing will be written: the stream need not be watched."""
        return self.live.silent

    def sending(self, headers: MutableMapping[str, str]) -> None:
        """An attempt is about to be sent with *headers*: count it, and add the trace context."""
        with guard("client.sending"):
            self._sent += 1
            if self._sent > 1:
                self.live.recorder.attempts = self._sent
                self.live.recorder.mark(Mark.SENT)
        inject(self.live, headers)

    def answered(self, response: Any) -> None:
        """The reply's headers have come; engines and gateways tell timings in them."""
        with guard("client.headers"):
            self.reader.headers(response.headers)
        network.answered(self.live, response)

    def reply(self, reply: Any) -> None:
        """The whole reply has come: read it, and end the request."""
        with guard("client.reply"):
            self.reader.whole(reply)
            self.reader.finish(self.live, exhausted=True)
        self.live.finish()

    def failed(self, error: BaseException) -> None:
        """The call raised *error*: end the request."""
        with guard("client.failed"):
            note_failure(self.live, error)
        self.live.finish()

    def stream(
        self,
        *,
        closes: Any = None,
        lazy: bool = False,
        terminated: Callable[[], bool | None] | None = None,
    ) -> ClientStream:
        """The stream that carries this call on, see `ClientStream`.

        *terminated* says at the end of it whether the protocol's terminator was seen.
        """
        if terminated is not None:
            self.reader.terminated = terminated
        return ClientStream(self.live, self.reader, closes=closes, lazy=lazy)


def port_of(url: Any) -> int | None:
    """The port of a parsed URL, of the standard library's kind or httpx's; None if unknown."""
    return url.port or {"https": 443, "http": 80}.get(url.scheme)


def inject(live: LiveRequest, headers: MutableMapping[str, str]) -> None:
    """Add the trace context to *headers*, save where the application has given its own.

    Baggage is left out: it goes to hosts that are trusted with it, and an LLM is none.
    """
    with guard("client.inject"):
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=live.context)
        given = {name.lower() for name in headers}
        for name, value in carrier.items():
            if name.lower() not in given and name.lower() != "baggage":
                headers[name] = value


def start(
    host: Host, target: Target, dialect: Dialect | None, library: object = None
) -> ClientCall | None:
    """Begin a call, or None where it is not to be traced: suppressed, switched off, or begun."""
    with guard("client.start"):
        context = context_api.get_current()
        if is_suppressed(context) or _is_within(context, library):
            return None
        telemetry = host.telemetry()
        if telemetry is None:
            return None
        info = _info(host, target, telemetry, context)
        live = _live(telemetry, info, context, host.beside())
        if live is None:
            return None
        live.recorder.expected_sequences = as_count(info.attributes.get(semconv.CHOICE_COUNT)) or 1
        if live.captures_content:
            parameters = request_parameters(target.body, telemetry.settings.vocabulary)
            live.question(target.body, _PROMPTS, parameters.get(semconv.STOP_SEQUENCES))
        reader = ReplyReader(live, dialect, target.body, target.base_url)
        return ClientCall(live, reader, library)
    return None


def current_call() -> ClientCall | None:
    """The call within which a client library is sending its request, or None."""
    return _call_in(context_api.get_current())


def _call_in(context: Context) -> ClientCall | None:
    call = context.get(_CALL)
    return call() if isinstance(call, weakref.ref) else None


def _is_within(context: Context, library: object) -> bool:
    """Whether this is the inner part of a call that has begun, of a class and its base class."""
    call = _call_in(context)
    return call is not None and library is not None and call.library is library


def _live(
    telemetry: Telemetry, info: RequestInfo, context: Context, beside: Beside
) -> LiveRequest | None:
    span = foreign_span(context) if beside is not Beside.OWN else None
    if span is not None and beside is Beside.JOIN:
        return telemetry.join(span, info, Side.CLIENT, parent=context)
    if span is not None or (beside is not Beside.OWN and is_theirs(context)):
        return None
    return telemetry.start(info, Side.CLIENT, parent=context)


def _info(host: Host, target: Target, telemetry: Telemetry, context: Context) -> RequestInfo:
    model = as_text(target.body.get("model"))
    attributes: dict[str, Value] = {
        **request_parameters(target.body, telemetry.settings.vocabulary),
        **identity(host.server().context_keys, {}, context),
    }
    attributes.pop(semconv.STOP_SEQUENCES, None)  # content, see `start`
    return RequestInfo(
        operation=target.operation,
        provider=known_at(target.base_url) or target.provider,
        model=model[:LONGEST_NAME] if model else None,
        server_address=target.server_address,
        server_port=target.server_port,
        attributes=attributes,
    )
