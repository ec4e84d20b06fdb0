"""Who asks, in whose trace, and below which SERVER span: the same for HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from otel_llm import semconv
from otel_llm.clock import Anchor
from otel_llm.emit.live import is_left_behind
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.propagation.headers import from_fields, joined
from otel_llm.propagation.identity import identity

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
