"""The OpenAI client library (1.x to 3.x), against the cloud or any server that speaks its API.

Every way through the library (`create`, `parse`, the `.stream()` helpers, raw and streaming
responses, `client.post`) ends in `request` of its base client, which also holds the retries: that
is what is wrapped. `_build_request` runs once for each attempt, and is where headers go in.

A stream is the library's own object. Its class is changed to a subclass that hands out a watched
iterator, and the response below it says when it is closed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import wrapt

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.clients import network
from otel_llm.clients.call import ClientCall, Target, current_call, port_of, start
from otel_llm.clients.handed import handed_async, handed_sync
from otel_llm.clients.http import watch_response
from otel_llm.guard import guard
from otel_llm.replies import CHAT, RESPONSES, Dialect, provider_of


class _Route(NamedTuple):
    operation: str
    dialect: Dialect


_ROUTES = {
    "/chat/completions": _Route("chat", CHAT),
    "/responses": _Route("chat", RESPONSES),
    "/embeddings": _Route("embeddings", CHAT),
    "/completions": _Route("text_completion", CHAT),
}
"""The first that a path ends with counts."""
_BELOW = "_otel_llm_original"


class _OpenAI:
    """The adapter of the OpenAI client."""

    def install(self, host: Host) -> Patches:
        """Patch the library's base clients, now or when they are imported."""
        patches = Patches("openai")
        patches.when_imported("openai._base_client", functools.partial(_patch, patches, host))
        patches.when_imported("openai", functools.partial(_patch_overrides, patches, host))
        return patches


ADAPTER = _OpenAI()


def _patch(patches: Patches, host: Host, module: Any) -> None:
    patches.replace(module.SyncAPIClient, "request", functools.partial(_sync, patches, host))
    patches.replace(module.AsyncAPIClient, "request", functools.partial(_async, patches, host))
    patches.replace(module.BaseClient, "_build_request", _building)
    patches.replace(module.SyncAPIClient, "_process_response", _processing)
    patches.replace(module.AsyncAPIClient, "_process_response", _processing)


def _patch_overrides(patches: Patches, host: Host, module: Any) -> None:
    """Client classes with a `request` of their own, another library's wrapper among them."""
    for name, make in (("OpenAI", _sync), ("AsyncOpenAI", _async)):
        kind, ours = getattr(module, name, object), functools.partial(make, patches, host)
        own = vars(kind).get("request")
        if isinstance(own, wrapt.FunctionWrapper):
            _patch_below(own, ours)
        elif own is not None:
            patches.replace(kind, "request", ours)


def _patch_below(wrapper: Any, ours: Callable[[Any], Any]) -> None:
    """Get below a *wrapper* that was there first, and that has the unpatched function.

    Its span can be joined only from there. It cannot be told what it wrapped before: after
    `uninstrument` ours stays below it and does nothing.
    """
    while isinstance(wrapper.__wrapped__, wrapt.FunctionWrapper):
        wrapper = wrapper.__wrapped__
    function = wrapper.__wrapped__
    below = ours(getattr(function, _BELOW, function))
    setattr(below, _BELOW, below.__wrapped__)
    wrapper.__wrapped__ = below


def _sync(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, args, kwargs) if patches.active else None
        if call is None:
            return original(self, *args, **kwargs)
        with call.sends():
            result = original(self, *args, **kwargs)
        return _handed_over(call, result)

    return request


def _async(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, args, kwargs) if patches.active else None
        if call is None:
            return await original(self, *args, **kwargs)
        with call.sends():
            result = await original(self, *args, **kwargs)
        return _handed_over(call, result)

    return request


def _building(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _build_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        call = current_call()
        if call is not None and call.library is self:
            call.sending(request.headers)
            is_async = hasattr(getattr(self, "_client", None), "aclose")
            network.watch(call.live, request.extensions, is_async=is_async)
        return request

    return _build_request


def _processing(original: Callable[..., Any]) -> Callable[..., Any]:
    """The reply's headers have come; sync and async alike, the result is passed through."""

    @functools.wraps(original)
    def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = current_call()
        if call is not None and call.library is self:
            call.answered(kwargs.get("response"))
        return original(self, *args, **kwargs)

    return _process_response


def _begun(
    host: Host, client: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ClientCall | None:
    with guard("openai.request"):
        options = kwargs.get("options") or args[1]
        route = _route_of(options)
        if route is None:
            return None
        body = options.json_data
        extra = getattr(options, "extra_json", None)
        known = {**(body if isinstance(body, Mapping) else {}), **(extra or {})}
        return start(host, _target(client, route.operation, known), route.dialect, client)
    return None


def _route_of(options: Any) -> _Route | None:
    if str(options.method).lower() != "post":
        return None
    path = str(options.url).partition("?")[0].rstrip("/")
    return next((route for suffix, route in _ROUTES.items() if path.endswith(suffix)), None)


def _target(client: Any, operation: str, body: Mapping[str, object]) -> Target:
    url = client.base_url
    azure = "azure.ai.openai" if type(client).__name__.endswith("AzureOpenAI") else "openai"
    return Target(
        operation=operation,
        provider=provider_of(str(url)) or azure,
        base_url=str(url),
        body=body,
        server_address=url.host or None,
        server_port=port_of(url),
    )


def _handed_over(call: ClientCall, result: Any) -> Any:
    """What the application gets: the library's own object, watched if it is read later on."""
    with guard("openai.result"):
        if call.silent:
            call.live.finish()
        elif hasattr(result, "_iterator") and hasattr(result, "response"):
            is_async = hasattr(type(result), "__aiter__")
            (handed_async if is_async else handed_sync)(call, result)
        elif (response := _raw_response(result)) is not None:
            watch_response(call.live, call.reader, response)
        else:
            call.reply(result)
    return result


def _raw_response(result: Any) -> Any:
    """The HTTP response of a raw or streaming response object, or None."""
    response = getattr(result, "http_response", result)
    return response if hasattr(response, "iter_bytes") else None
