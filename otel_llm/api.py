"""`trace_request` and the middleware, on the telemetry that is in force in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import context as context_api
from opentelemetry.trace import Link

from otel_llm.config import RUNTIME
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import as_text, cleaned
from otel_llm.errors import ConfigurationError
from otel_llm.propagation.headers import Carrier, from_fields, joined, normalised
from otel_llm.propagation.identity import identity
from otel_llm.servers import asgi
from otel_llm.servers.body import App
from otel_llm.servers.scope import LONGEST_NAME
from otel_llm.timeline import Side
from otel_llm.tracing import TracedRequest


def trace_request(
    operation: str,
    *,
    model: str | None = None,
    provider: str,
    side: Side | str = Side.ENGINE,
    carrier: Carrier = None,
    server_address: str | None = None,
    server_port: int | None = None,
    attributes: Mapping[str, object] | None = None,
) -> TracedRequest:
    """The request span of an engine or client of one's own, as a `with` or `async with` block.

    Args:
        operation: GenAI operation name: `chat`, `text_completion`, `embeddings`, or another.
        model: The model that is asked; None if it is not known.
        provider: `gen_ai.provider.name`: the engine or service that answers.
        side: From where the request is seen: `client`, `proxy`, `server` or `engine`.
        carrier: Incoming headers to take the parent and the identity keys from; the current span
            is the parent by default.
        server_address: Host that is called, or that answers.
        server_port: Its port.
        attributes: Further attributes, seen by samplers.

    Raises:
        ConfigurationError: *side* is not one of the four.
    """
    try:
        seen_from = Side(side)
    except ValueError:
        raise ConfigurationError(
            f"side is {side!r}; it must be one of: {', '.join(Side)}"
        ) from None
    given = cleaned(attributes or {})

    def start() -> LiveRequest | None:
        settings = RUNTIME.settings
        if settings.disabled:
            return None
        parent = context_api.get_current()
        links: list[Link] = []
        headers = normalised(carrier)
        who = identity(settings.context_keys, headers, parent)
        if carrier is not None:
            remote = from_fields(headers, parent)
            trust = RUNTIME.server.trust_remote or seen_from not in _EDGES
            who = identity(settings.context_keys, headers, remote if trust else parent)
            parent, links = joined(remote, parent, trust=trust)
        info = RequestInfo(
            operation=operation,
            provider=provider,
            model=(as_text(model) or "")[:LONGEST_NAME] or None,
            server_address=server_address,
            server_port=server_port,
            attributes={**given, **who},
        )
        return RUNTIME.current().start(info, seen_from, parent=parent, links=links)

    return TracedRequest(start)


_EDGES = frozenset({Side.SERVER, Side.PROXY})
"""Sides on which a request may come from anyone."""


class InferenceMiddleware(asgi.InferenceMiddleware):
    """ASGI middleware on the telemetry in force in this process, with the environment's settings.

    Args:
        app: The ASGI application.
        provider: `gen_ai.provider.name`: the engine that answers.
        telemetry: Other telemetry than that of `configure` or `instrument`.
        settings: Other settings than the environment's.
    """

    def __init__(
        self,
        app: App,
        *,
        provider: str = "unknown",
        telemetry: Telemetry | None = None,
        settings: asgi.ServerSettings | None = None,
    ) -> None:
        _ = RUNTIME.settings  # wrong ones are told now, and not at each request
        super().__init__(
            app,
            telemetry or _in_force,
            settings or (lambda: replace(RUNTIME.server, provider=provider)),
        )


def _in_force() -> Telemetry | None:
    return None if RUNTIME.settings.disabled else RUNTIME.current()
