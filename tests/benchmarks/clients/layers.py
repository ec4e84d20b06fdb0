"""What stands below the clients: nothing at all, their own parsing, or a socket.

`stub` cuts the clients off just below the functions that instrumentations wrap and hands out parsed
chunks, so that a bare chunk costs a tenth of a microsecond and not fifty, and small costs show.
`replay` gives the whole client the same bytes from memory. `http` is the real thing.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any

from tests.benchmarks.clients.replies import OPENAI_PATH, answer, ollama_lines, openai_events

LAYERS = ("stub", "replay")
LIBRARIES = ("openai", "ollama")
MODES = ("sync", "async")
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Write a short story about a clock, in plain words."},
]
NOWHERE = "http://127.0.0.1:9"

handed: dict[str, Any] = {}
"""What the stub of each library handed out last."""


def asking(library: str, client: Any, *, usage: bool = True) -> Callable[..., Any]:
    """A function that asks for a stream as an application does: `ask(model)`.

    *usage* asks openai for token counts.
    """
    if library == "ollama":
        options = {"temperature": 0.7, "num_predict": 4096}
        return lambda model: client.chat(
            model=model, messages=MESSAGES, stream=True, options=options
        )
    create = client.chat.completions.create
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    return lambda model: create(
        model=model, messages=MESSAGES, stream=True, temperature=0.7, max_tokens=4096, **more
    )


def client(
    library: str, mode: str, layer: str, *, module: str = "openai", url: str = NOWHERE
) -> Any:
    """A client above that layer; *module* is where `OpenAI` is imported from."""
    prefix = "Async" if mode == "async" else ""
    more: dict[str, Any] = {}
    if library == "ollama":
        import httpx
        import ollama

        more = {"transport": replaying(httpx, mode)} if layer == "replay" else {}
        return getattr(ollama, f"{prefix}Client")(host=url, **more)
    if layer == "replay":
        http = _http_of_openai()
        more = {"http_client": getattr(http, f"{prefix}Client")(transport=replaying(http, mode))}
    kind = getattr(importlib.import_module(module), f"{prefix}OpenAI")
    return kind(api_key="x", base_url=f"{url}/v1", max_retries=0, **more)


def _http_of_openai() -> Any:
    """The HTTP library of this openai: httpx2 since version 3."""
    base = importlib.import_module("openai._base_client")
    return getattr(base, "httpx2", None) or importlib.import_module("httpx")


def replaying(http: Any, mode: str) -> Any:
    """A transport of that HTTP library that answers from memory, one piece of bytes per chunk."""

    class Body(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, pieces: tuple[bytes, ...]) -> None:
            self.pieces = pieces

        def __iter__(self) -> Iterator[bytes]:
            return iter(self.pieces)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self.pieces:
                yield piece

    def answered(request: Any, body: bytes) -> Any:
        kind, pieces = answer(request.url.path, json.loads(body))
        headers = {"content-type": kind}
        return http.Response(200, headers=headers, stream=Body(pieces), request=request)

    class Sync(http.BaseTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            return answered(request, request.read())

    class Async(http.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            return answered(request, await request.aread())

    return Async() if mode == "async" else Sync()


def install_stubs() -> None:
    """Cut both clients off; to be done before any instrumentation is switched on."""
    _stub_openai()
    _stub_ollama()


def _stub_openai() -> None:
    import openai
    from openai._base_client import AsyncAPIClient, SyncAPIClient
    from openai.types.chat import ChatCompletionChunk

    http = _http_of_openai()

    @cache
    def chunks(model: str, usage: bool) -> list[Any]:
        events = openai_events(model, usage)[:-1]
        made = {e: ChatCompletionChunk.model_validate(json.loads(e[6:])) for e in set(events)}
        return [made[event] for event in events]

    def stream(client: Any, cast_to: Any, options: Any, stream_cls: Any) -> Any:
        body = options.json_data
        request = http.Request("POST", NOWHERE + OPENAI_PATH)
        headers = {"content-type": "text/event-stream"}
        response = http.Response(200, headers=headers, request=request)
        made = stream_cls(cast_to=cast_to, response=response, client=client)
        made.stubbed = chunks(body["model"], "stream_options" in body)
        handed["openai"] = made
        return made

    def request(self: Any, cast_to: Any, options: Any, *, stream_cls: Any, **_: Any) -> Any:
        return stream(self, cast_to, options, stream_cls)

    async def request_async(
        self: Any, cast_to: Any, options: Any, *, stream_cls: Any, **_: Any
    ) -> Any:
        return stream(self, cast_to, options, stream_cls)

    def items(self: Any) -> Iterator[Any]:
        yield from self.stubbed

    async def items_async(self: Any) -> AsyncIterator[Any]:
        for each in self.stubbed:
            yield each

    SyncAPIClient.request = request  # type: ignore[assignment, method-assign]
    AsyncAPIClient.request = request_async  # type: ignore[assignment, method-assign]
    openai.Stream.__stream__ = items  # type: ignore[method-assign]
    openai.AsyncStream.__stream__ = items_async  # type: ignore[method-assign]


def _stub_ollama() -> None:
    import ollama

    @cache
    def parts(model: str) -> list[Any]:
        lines = ollama_lines(model)
        made = {line: ollama.ChatResponse(**json.loads(line)) for line in set(lines)}
        return [made[line] for line in lines]

    def request(self: Any, cls: Any, *args: Any, stream: bool = False, **given: Any) -> Any:
        def inner() -> Iterator[Any]:
            yield from parts(given["json"]["model"])

        handed["ollama"] = inner()
        return handed["ollama"]

    async def request_async(
        self: Any, cls: Any, *args: Any, stream: bool = False, **given: Any
    ) -> Any:
        async def inner() -> AsyncIterator[Any]:
            for each in parts(given["json"]["model"]):
                yield each

        handed["ollama"] = inner()
        return handed["ollama"]

    ollama.Client._request = request  # type: ignore[assignment, method-assign]
    ollama.AsyncClient._request = request_async  # type: ignore[assignment, method-assign]
