"""TGI's own client, `text_generation` (0.7): `Client` and `AsyncClient`.

Its methods take headers from the client object and throw the response away. So a method is run on
a copy of the client, whose headers carry the trace and the call that they belong to: the functions
of requests and aiohttp that the module calls are wrapped, find the call, and tell it what came.
A stream is a generator that sends its request when it is first read.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.clients import network
from otel_llm.clients.call import ClientCall, Target, inject, port_of, start
from otel_llm.clients.failures import note_status
from otel_llm.guard import guard
from otel_llm.replies import CHAT, TGI, failure_in, provider_of
from otel_llm.timeline import Outcome

_OPERATIONS = {"chat": "chat", "generate": "text_completion", "generate_stream": "text_completion"}
_PARAMETERS = {
    "max_new_tokens": "max_tokens",
    "return_full_text": "echo",
    "stop_sequences": "stop",
}
"""The client's names of parameters, and those of the other APIs."""
_ERRORS = {
    "GenerationError": "generation",
    "IncompleteGenerationError": "incomplete_generation",
    "OverloadedError": "overloaded",
    "ValidationError": "validation",
}
"""The exceptions that the client makes of an error's type."""


class _Headers(dict[str, str]):
    """The headers of one request, and the call that it belongs to."""

    call: ClientCall


class _TextGeneration:
    """The adapter of TGI's client."""

    def install(self, host: Host) -> Patches:
        """Patch the library's clients, now or when they are imported."""
        patches = Patches("text_generation")
        patches.when_imported("text_generation.client", functools.partial(_patch, patches, host))
        return patches


ADAPTER = _TextGeneration()


def _patch(patches: Patches, host: Host, module: Any) -> None:
    for method in _OPERATIONS:
        patches.replace(module.Client, method, functools.partial(_sync, patches, host))
        # The asynchronous stream is made at once, too.
        make = _sync if method == "generate_stream" else _async
        patches.replace(module.AsyncClient, method, functools.partial(make, patches, host))
    patches.replace(module, "requests", _Requests)
    patches.replace(module, "ClientSession", _session)


def _sync(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    begun = _beginning(host, original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(self, args, kwargs) if patches.active else None
        if call is None:
            return original(self, *args, **kwargs)
        with call.sends(), _noted(call):
            result = original(_sending(call, self), *args, **kwargs)
        return _handed_over(call, result)

    return method


def _async(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    begun = _beginning(host, original)

    @functools.wraps(original)
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(self, args, kwargs) if patches.active else None
        if call is None:
            return await original(self, *args, **kwargs)
        with call.sends(), _noted(call):
            result = await original(_sending(call, self), *args, **kwargs)
        return _handed_over(call, result)

    return method


class _Requests:
    """The module requests, as this library sees it: what it posts is told to its call."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def post(self, *args: Any, headers: Any = None, **kwargs: Any) -> Any:
        """As `requests.post`."""
        if not isinstance(headers, _Headers):
            return self._module.post(*args, headers=headers, **kwargs)
        response = self._module.post(*args, headers=headers, **kwargs)
        _answered(headers.call, response, response.status_code)
        return response


def _session(original: Any) -> Any:
    """As `_Requests.post`, for the session that the library makes for each call."""

    @functools.wraps(original, updated=())
    def make(*args: Any, headers: Any = None, **kwargs: Any) -> Any:
        if isinstance(headers, _Headers):
            kwargs["trace_configs"] = [_telling(headers.call)]
        return original(*args, headers=headers, **kwargs)

    return make


def _telling(call: ClientCall) -> Any:
    import aiohttp

    async def told(_session: Any, _context: Any, params: Any) -> None:
        _answered(call, params.response, params.response.status)

    config = aiohttp.TraceConfig()
    config.on_request_end.append(told)
    network.watch_session(call.live, config)
    return config


def _answered(call: ClientCall, response: Any, status: int) -> None:
    with guard("text_generation.status"):
        note_status(call.live, status)
    call.answered(response)


def _handed_over(call: ClientCall, result: Any) -> Any:
    """What the application gets: the reply as it is, or a stream that is watched."""
    is_async = inspect.isasyncgen(result)
    if call.silent:
        call.live.finish()
    elif not is_async and not inspect.isgenerator(result):
        call.reply(result)
    else:
        told: Any = (_told_async if is_async else _told)(call, result)
        return call.stream(closes=told, lazy=True).like(told, result)
    return result


def _told(call: ClientCall, items: Any) -> Iterator[Any]:
    with _noted(call):
        yield from items


async def _told_async(call: ClientCall, items: Any) -> AsyncIterator[Any]:
    try:
        with _noted(call):
            async for item in items:
                yield item
    finally:
        await items.aclose()


@contextmanager
def _noted(call: ClientCall) -> Iterator[None]:
    """Note what passes through."""
    try:
        yield
    except Exception as error:
        _note(call, error)
        raise


def _note(call: ClientCall, error: BaseException) -> None:
    """Note which of TGI's errors the client has raised; its type is all that is left of it."""
    with guard("text_generation.error"):
        kind = _ERRORS.get(type(error).__name__)
        if kind is None or not type(error).__module__.startswith("text_generation"):
            return
        failure = failure_in({"error": kind, "error_type": kind})
        refused = failure is not None and failure.refused
        call.live.recorder.fail(Outcome.REJECTED if refused else Outcome.ERROR, kind)


def _sending(call: ClientCall, client: Any) -> Any:
    """A copy of the client that sends our headers beside the application's."""
    with guard("text_generation.headers"):
        copied = copy.copy(client)
        copied.headers = _Headers(client.headers or {})
        copied.headers.call = call
        inject(call.live, copied.headers)
        return copied
    return client


def _beginning(host: Host, original: Callable[..., Any]) -> Callable[..., ClientCall | None]:
    """What begins a call of *original*; arguments that do not fit are its own affair."""
    signature, name = inspect.signature(original), original.__name__

    def begun(client: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ClientCall | None:
        with guard("text_generation.call"):
            try:
                given = signature.bind(client, *args, **kwargs)
            except TypeError:
                return None
            given.apply_defaults()
            dialect = CHAT if name == "chat" else TGI
            return start(host, _target(name, client, given.arguments), dialect, client)
        return None

    return begun


def _target(method: str, client: Any, given: Mapping[str, Any]) -> Target:
    url = urlsplit(str(client.base_url))
    known = {_PARAMETERS.get(name, name): value for name, value in given.items()}
    known["stream"] = known.get("stream", method == "generate_stream")
    if isinstance(messages := known.get("messages"), list):
        known["messages"] = [_plain(each) for each in messages]
    return Target(
        operation=_OPERATIONS[method],
        provider=provider_of(client.base_url) or "tgi",
        base_url=str(client.base_url),
        body=known,
        server_address=url.hostname,
        server_port=port_of(url),
    )


def _plain(message: Any) -> Any:
    """A message as it is sent."""
    return message.model_dump() if hasattr(message, "model_dump") else message
