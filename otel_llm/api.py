"""`trace_request`, on the telemetry that is in force in this process."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import context as context_api

from otel_llm.config import RUNTIME, Settings
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.values import cleaned
from otel_llm.errors import ConfigurationError
from otel_llm.propagation.headers import Carrier, extract
from otel_llm.timeline import Side
from otel_llm.tracing import TracedRequest


def trace_request(
    operation: str,
    *,
    model: str | None = None,
    provider: str,
    side: Side | str = Side.ENGINE,
    carrier: Carrier = None,
    attributes: Mapping[str, object] | None = None,
) -> TracedRequest:
    """The request span of an engine or client of one's own, as a `with` or `async with` block.

    Args:
        operation: GenAI operation name: `chat`, `text_completion`, `embeddings`, or another.
        model: The model that is asked; None if it is not known.
        provider: `gen_ai.provider.name`: the engine or service that answers.
        side: From where the request is seen: `client`, `proxy`, `server` or `engine`.
        carrier: Incoming headers to take the parent from; the current span by default.
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
    info = RequestInfo(
        operation=operation,
        provider=provider,
        model=model,
        attributes=cleaned(attributes or {}),
    )

    def start() -> LiveRequest | None:
        if Settings.from_environment().disabled:
            return None
        parent = context_api.get_current()
        if carrier is not None:
            parent = extract(carrier, parent)
        return RUNTIME.current().start(info, seen_from, parent=parent)

    return TracedRequest(start)
