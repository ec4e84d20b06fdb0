"""What an ASGI scope and a request body say of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_llm import semconv
from otel_llm.emit.values import Value, as_text, clean_text
from otel_llm.servers.body import Scope
from otel_llm.servers.routes import Route

LONGEST_NAME = 256
LONGEST_PATH = 1024
PROMPTS = ("messages", "input", "prompt")
"""The fields of a body that hold what is asked."""


def model_of(body: Mapping[str, Any]) -> str | None:
    """The model that the body names, cut to 256 characters, or None."""
    model = as_text(body.get("model"))
    return model[:LONGEST_NAME] if model else None


def address_of(scope: Scope) -> tuple[str | None, int | None]:
    """Host and port on which the server listens; None for a socket without them."""
    server = scope.get("server")
    if not server:
        return None, None
    return server[0], server[1]


def http_attributes(scope: Scope, route: Route | None, model: str | None) -> dict[str, Value]:
    """Attributes of the SERVER span, known when it starts; a WebSocket has no *route* of ours."""
    found: dict[str, Value] = {
        semconv.HTTP_METHOD: scope.get("method", "GET"),
        semconv.URL_PATH: clean_text(scope["path"][:LONGEST_PATH]),
        semconv.URL_SCHEME: scope.get("scheme", "http"),
    }
    if route is not None:
        found[semconv.HTTP_ROUTE] = route.path
        found[semconv.OPERATION] = route.operation
    if version := scope.get("http_version"):
        found[semconv.NETWORK_PROTOCOL_VERSION] = version
    address, port = address_of(scope)
    if address is not None:
        found[semconv.SERVER_ADDRESS] = address
    if port is not None:
        found[semconv.SERVER_PORT] = port
    if model is not None:
        found[semconv.REQUEST_MODEL] = model
    return found
