"""The clients of the demo: an instrumented library, or a home-made one with `trace_request`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import otel_llm
from otel_llm.errors import MissingDependencyError
from otel_llm.simulator.load import Client, ClientBehaviour, openai_client
from otel_llm.simulator.workload import Arrival

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 120.0
MOST_CONNECTIONS = 1000


def client(dialect: str, base_url: str, behaviour: ClientBehaviour) -> Client:
    """What sends the load: `openai` where it is spoken and installed, else httpx.

    Raises:
        MissingDependencyError: Not even httpx is installed.
    """
    if dialect == "vllm" and find_spec("openai") is not None:
        import_module("openai.resources.chat")  # it would be imported by the first request
        return openai_client(f"{base_url}/v1", behaviour, timeout=TIMEOUT_S)
    if find_spec("httpx") is None:
        raise MissingDependencyError("httpx", extra="demo")
    return _http_client(dialect, base_url, behaviour)


def instrumented() -> list[str]:
    """The engines that `configure` shall instrument in this process."""
    return ["openai"] if find_spec("openai") is not None else []


@dataclass(frozen=True, slots=True)
class _Asking:
    """How one dialect is asked: the paths of a stream and of a whole answer, and the body."""

    stream: str
    whole: str
    body: Callable[[Arrival], dict[str, Any]]


def _openai_body(arrival: Arrival) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": arrival.model,
        "messages": [{"role": "user", "content": arrival.prompt}],
        "max_tokens": arrival.max_tokens,
        "stream": arrival.stream,
    }
    return body | ({"stream_options": {"include_usage": True}} if arrival.stream else {})


def _tgi_body(arrival: Arrival) -> dict[str, Any]:
    parameters = {"max_new_tokens": arrival.max_tokens, "details": True}
    return {"inputs": arrival.prompt, "parameters": parameters}


def _ollama_body(arrival: Arrival) -> dict[str, Any]:
    return {
        "model": arrival.model,
        "messages": [{"role": "user", "content": arrival.prompt}],
        "options": {"num_predict": arrival.max_tokens},
        "stream": arrival.stream,
    }


_DIALECTS = {
    "vllm": _Asking("/v1/chat/completions", "/v1/chat/completions", _openai_body),
    "tgi": _Asking("/generate_stream", "/generate", _tgi_body),
    "ollama": _Asking("/api/chat", "/api/chat", _ollama_body),
}


def _http_client(dialect: str, base_url: str, behaviour: ClientBehaviour) -> Client:
    import httpx

    asking = _DIALECTS[dialect]
    limits = httpx.Limits(max_connections=MOST_CONNECTIONS)
    http = httpx.AsyncClient(base_url=base_url, timeout=TIMEOUT_S, limits=limits)

    async def call(arrival: Arrival) -> Any:
        lines = _lines(http, dialect, asking, arrival)
        return lines if arrival.stream else [line async for line in lines]

    return Client(call, http.aclose, lambda line: (line, None), behaviour)


async def _lines(
    http: httpx.AsyncClient, dialect: str, asking: _Asking, arrival: Arrival
) -> AsyncIterator[str]:
    """Ask, and yield what is not empty of the answer."""
    path = asking.stream if arrival.stream else asking.whole
    address = urlsplit(str(http.base_url))
    with otel_llm.trace_request(
        "chat" if path.endswith(("chat", "completions")) else "text_completion",
        model=arrival.model,
        provider=dialect,
        side="client",
        server_address=address.hostname,
        server_port=address.port,
    ) as request:
        content = json.dumps(asking.body(arrival))
        headers = request.headers({"content-type": "application/json"})
        async with http.stream("POST", path, content=content, headers=headers) as response:
            async for line in request.response(response).aiter_lines():
                if line:
                    yield line
            response.raise_for_status()
