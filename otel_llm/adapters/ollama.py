"""Ollama's client library (0.4 and newer): `Client`, `AsyncClient`, and the module's functions.

`ollama.chat` and its like are methods of a client made at import, so that patches of `Client.chat`
pass them by; they all end in `Client._request`, which is what is wrapped. A stream is a generator
that sends its request when it is first read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import context as context_api

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.clients.call import ClientCall, Target, inject, start
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


def _sync(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, args, kwargs) if patches.active else None
        if call is None:
            return original(self, *args, **kwargs)
        sending = _with_context(call, kwargs)
        token = context_api.attach(call.context)
        try:
            result = original(self, *args, **sending)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            context_api.detach(token)
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
        sending = _with_context(call, kwargs)
        token = context_api.attach(call.context)
        try:
            result = await original(self, *args, **sending)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            context_api.detach(token)
        if not _streams(kwargs):
            call.reply(result)
            return result
        return result if _is_silent(call) else _astream(call, result)

    return _request


def _stream(call: ClientCall, result: Any) -> Any:
    return call.stream(closes=result, lazy=True).read(result)


def _astream(call: ClientCall, result: Any) -> Any:
    return call.stream(closes=result, lazy=True).read_async(result)


def _is_silent(call: ClientCall) -> bool:
    """End a call of which nothing is written at once; its stream is then the library's own."""
    silent = call.silent
    if silent:
        call.live.finish()
    return silent


def _streams(kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("stream"))


def _with_context(call: ClientCall, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the HTTP request, with our headers beside the application's."""
    headers = dict(kwargs.get("headers") or {})
    inject(call.live, headers)
    return {**kwargs, "headers": headers}


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
            body=_known(body if isinstance(body, Mapping) else {}),
            server_address=url.host or None,
            server_port=url.port or {"https": 443, "http": 80}.get(url.scheme),
        )
        return start(host, target, OLLAMA, client)
    return None


def _known(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with its options as the other APIs call them."""
    options = body.get("options")
    given = dict(options) if isinstance(options, Mapping) else {}
    if "num_predict" in given:
        given["max_tokens"] = given.pop("num_predict")
    return {**given, **body}
