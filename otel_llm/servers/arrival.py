"""Who asks, in whose trace, and the two spans of a request, from their start to their end.

The same for HTTP and WebSocket, for the middleware and the proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.live import LiveRequest, is_left_behind
from otel_llm.emit.request import RequestInfo, request_parameters
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.guard import guard
from otel_llm.propagation.headers import from_fields, joined
from otel_llm.propagation.identity import identity
from otel_llm.servers.routes import Route
from otel_llm.servers.scope import PROMPTS
from otel_llm.timeline import Outcome, Side, Timeline

if TYPE_CHECKING:
    from otel_llm.servers.asgi import ServerSettings


class Arrival(NamedTuple):
    """What was current when a request came, what its headers say, and who asks."""

    outer: Context
    remote: Context
    who: Mapping[str, str]

    @classmethod
    def of(cls, headers: Mapping[str, str], settings: ServerSettings) -> Arrival:
        """Read *headers*; of a stranger's baggage nobody is named."""
        outer = context_api.get_current()
        if is_left_behind(outer):
            outer = Context()
        remote = from_fields(headers, outer)
        known = remote if settings.trust_remote else outer
        return cls(outer, remote, identity(settings.context_keys, headers, known))

    def server_span(
        self, telemetry: Telemetry, attributes: Mapping[str, Value], anchor: Anchor, *, trust: bool
    ) -> tuple[Context, Span | None]:
        """The context of the SERVER span, and the span if it is ours: nobody else has made one."""
        owner = trace.get_current_span(self.outer).get_span_context()
        if owner.is_valid and not owner.is_remote:
            return self.outer, None
        parent, links = joined(self.remote, self.outer, trust=trust)
        method, route = attributes[semconv.HTTP_METHOD], attributes.get(semconv.HTTP_ROUTE)
        span = telemetry.tracer.start_span(
            f"{method} {route}" if route else str(method),
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes,
            links=links,
            start_time=anchor.wall_ns,
        )
        return trace.set_span_in_context(span, parent), span


def resolved(telemetry: Telemetry | Callable[[], Telemetry | None] | None) -> Telemetry | None:
    """The telemetry in force: that one, or what it says at this request."""
    if telemetry is None or isinstance(telemetry, Telemetry):
        return telemetry
    with guard("servers.telemetry"):
        return telemetry()
    return None


class Asked(NamedTuple):
    """What a request asks for: its route, its body, and the model that this names."""

    route: Route
    body: Mapping[str, Any]
    model: str | None


def start_request(
    telemetry: Telemetry,
    asked: Asked,
    side: Side,
    *,
    provider: str,
    address: tuple[str | None, int | None],
    who: Mapping[str, str],
    parent: Context,
    anchor: Anchor,
    parameters_of: Mapping[str, Any] | None = None,
    prompts: Iterable[str] = PROMPTS,
) -> LiveRequest:
    """Open the request span below the SERVER span.

    Args:
        telemetry: Where it goes.
        asked: What is asked for.
        side: From where the request is seen.
        provider: Who answers.
        address: Where it is answered.
        who: Who asks, see `Arrival`.
        parent: The context of the SERVER span.
        anchor: When the request arrived.
        parameters_of: The body with its parameters under OpenAI's names, if it has others.
        prompts: The fields of the body that hold what is asked.
    """
    body, route = asked.body, asked.route
    named = body if parameters_of is None else parameters_of
    parameters = request_parameters(named, telemetry.settings.vocabulary)
    stops = parameters.pop(semconv.STOP_SEQUENCES, None)  # they may quote the prompt
    info = RequestInfo(
        operation=route.operation,
        provider=provider,
        model=asked.model,
        server_address=address[0],
        server_port=address[1],
        attributes={semconv.HTTP_ROUTE: route.path, **parameters, **who},
    )
    live = telemetry.start(info, side, parent=parent, anchor=anchor)
    live.recorder.streaming = body.get("stream") is True
    with guard("servers.question"):
        live.question(body, prompts, stops)
    return live


def end_server_span(
    span: Span, *, status: int | None, failed: str | None, end_ns: int | None = None
) -> None:
    """End a SERVER span of ours: with the HTTP status, and as an error if something has *failed*.

    Args:
        span: The span.
        status: The HTTP status that was sent, if one was.
        failed: `error.type`, or None.
        end_ns: When it ended, nanoseconds since the epoch; now by default.
    """
    if span.is_recording():
        if status is not None:
            span.set_attribute(semconv.HTTP_STATUS, status)
        if failed is not None:
            span.set_attribute(semconv.ERROR_TYPE, failed)
            span.set_status(Status(StatusCode.ERROR))
    span.end(end_ns)


def end_with_request(span: Span, timeline: Timeline, status: int | None) -> None:
    """End the SERVER span when and as its request has ended."""
    failed = None
    if timeline.outcome is Outcome.ERROR or (status is not None and status >= 500):
        failed = timeline.error_type or str(status)
    end_ns = None if timeline.end_us is None else timeline.end_us * 1000
    end_server_span(span, status=status, failed=failed, end_ns=end_ns)
