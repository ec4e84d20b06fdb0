"""Ollama's client library (0.4 and newer): `Client`, `AsyncClient`, and the module's functions.

`ollama.chat` and its like are methods of a client made at import, so that patches of `Client.chat`
pass them by; they all end in `Client._request`, which is what is wrapped. A stream is a generator
that sends its request when it is first read.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.clients import network
from otel_llm.clients.call import ClientCall, Target, current_call, inject, port_of, start
from otel_llm.guard import guard
from otel_llm.replies import OLLAMA

_OPERATIONS = {
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}


class _Ollama:
    """The adapter of Ollama's client."""

    def install(self, host: Host) -> Patches:
        """Patch the library's clients, now or when they are imported."""
        patches = Patches("ollama")
        patches.when_imported("ollama._client", functools.partial(_patch, patches, host))
        return patches


ADAPTER = _Ollama()


def _patch(patches: Patches, host: Host, module: Any) -> None:
    patches.replace(module.Client, "_request", functools.partial(_sync, patches, host))
    patches.replace(module.AsyncClient, "_request", functools.partial(_async, patches, host))
    patches.replace(module.Client, "_request_raw", _answering)
    patches.replace(module.AsyncClient, "_request_raw", _answering_async)


def _sync(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, args, kwargs) if patches.active else None
        if call is None:
            return original(self, *args, **kwargs)
        sending = _with_context(call, kwargs, is_async=False)
        with call.sends():
            result = original(self, *args, **sending)
        if not _streams(kwargs):
            call.reply(result)
            return result
        return result if _is_silent(call) else _stream(call, result)

    return _request


def _async(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, args, kwargs) if patches.active else None
        if call is None:
            return await original(self, *args, **kwargs)
        sending = _with_context(call, kwargs, is_async=True)
        with call.sends():
            result = await original(self, *args, **sending)
        if not _streams(kwargs):
            call.reply(result)
            return result
        return result if _is_silent(call) else _astream(call, result)

    return _request


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """A reply in one piece has come; its connection is told of."""

    @functools.wraps(original)
    def _request_raw(self: Any, *args: Any, **kwargs: Any) -> Any:
        response = original(self, *args, **kwargs)
        _answered(self, response)
        return response

    return _request_raw


def _answering_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _request_raw(self: Any, *args: Any, **kwargs: Any) -> Any:
        response = await original(self, *args, **kwargs)
        _answered(self, response)
        return response

    return _request_raw


def _answered(client: Any, response: Any) -> None:
    call = current_call()
    if call is not None and call.library is client:
        network.answered(call.live, response)


def _response(generator: weakref.ref[Any], frame: str) -> Any:
    """The response that the library's *generator* reads, which nothing else tells, or None."""
    running = getattr(generator(), frame, None)
    return None if running is None else running.f_locals.get("r")


def _stream(call: ClientCall, result: Any) -> Any:
    network.find(call.live, functools.partial(_response, weakref.ref(result), "gi_frame"))
    return call.stream(closes=result, lazy=True, terminated=_no_terminator).opened(result)


def _astream(call: ClientCall, result: Any) -> Any:
    network.find(call.live, functools.partial(_response, weakref.ref(result), "ag_frame"))
    return call.stream(closes=result, lazy=True, terminated=_no_terminator).read_async(result)


def _no_terminator() -> bool:
    """The library hands out every line, so that a stream without its last one was cut."""
    return False


def _is_silent(call: ClientCall) -> bool:
    """End a call of which nothing is written at once; its stream is then the library's own."""
    silent = call.silent
    if silent:
        call.live.finish()
    return silent


def _streams(kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("stream"))


def _with_context(call: ClientCall, kwargs: Mapping[str, Any], *, is_async: bool) -> dict[str, Any]:
    """The arguments of the HTTP request, with our headers beside the application's."""
    ours: dict[str, str] = {}
    inject(call.live, ours)
    its_own = call.library._client.headers  # type: ignore[attr-defined]  # noqa: SLF001
    added = {name: value for name, value in ours.items() if name not in its_own}
    headers = {**added, **(kwargs.get("headers") or {})}
    extensions = dict(kwargs.get("extensions") or {})
    network.watch(call.live, extensions, is_async=is_async)
    return {**kwargs, "headers": headers, **({"extensions": extensions} if extensions else {})}


def _begun(
    host: Host, client: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ClientCall | None:
    with guard("ollama.request"):
        operation = next((_OPERATIONS[each] for each in args[1:] if each in _OPERATIONS), None)
        if operation is None:
            return None
        body = kwargs.get("json")
        url = client._client.base_url  # noqa: SLF001 - nothing public says where it sends
        target = Target(
            operation=operation,
            provider="ollama",
            base_url=str(url),
            body=_translated(body if isinstance(body, Mapping) else {}),
            server_address=url.host or None,
            server_port=port_of(url),
        )
        return start(host, target, OLLAMA, client)
    return None


def _translated(body: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the request, as OpenAI's API would say it."""
    options = body.get("options")
    known = dict(options) if isinstance(options, Mapping) else {}
    known["max_tokens"] = known.pop("num_predict", None)
    known |= {name: body.get(name) for name in ("model", "stream", "input")}
    if body.get("format"):
        known["response_format"] = {"type": "json_object"}
    known["messages"] = _messages(body)
    return known


def _messages(body: Mapping[str, Any]) -> list[Any] | None:
    """The messages, or the prompt as one; their images as parts without what is in them."""
    given = body.get("messages")
    if not isinstance(given, list):
        system, prompt = body.get("system"), body.get("prompt")
        given = [{"role": "system", "content": system}] if system else []
        if prompt is not None:
            given.append({"role": "user", "content": prompt, "images": body.get("images")})
    return [_with_parts(each) for each in given] or None


def _with_parts(message: Any) -> Any:
    images = message.get("images") if isinstance(message, Mapping) else None
    if not isinstance(images, list):
        return message
    text = {"type": "text", "text": message.get("content") or ""}
    return {**message, "content": [text, *[{"type": "image"}] * len(images)]}
