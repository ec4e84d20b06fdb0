"""The client of huggingface_hub (0.28 to 2.x): `InferenceClient` and `AsyncInferenceClient`.

Every task ends in `_inner_post`, which is what is wrapped; it sends the request and gives back the
whole body, or the lines of a stream. A module function makes the stream's items of its lines: it
is wrapped too, so that what is watched are the items as the application reads them. The lines
beneath hold what the items do not, and the last few of them are kept for it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from otel_llm import semconv
from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.clients.call import ClientCall, Target, current_call, port_of, start
from otel_llm.clients.http import LARGEST_REPLY
from otel_llm.clients.reader import LAST_ITEMS, ReplyReader
from otel_llm.clients.stream import ClientStream
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.values import as_text
from otel_llm.guard import guard
from otel_llm.replies import CHAT, TGI, Telling, failure_in, provider_of
from otel_llm.replies.wire import DONE, MALFORMED, Record, parsed

_OPERATIONS = {
    "conversational": "chat",
    "text-generation": "text_completion",
    "feature-extraction": "embeddings",
}
"""By task; the others are no calls of a language model."""
_CLIENTS = {
    "huggingface_hub.inference._client": "InferenceClient",
    "huggingface_hub.inference._generated._async_client": "AsyncInferenceClient",
}
_CHAT_ITEMS = "stream_chat_completion_response"
_TEXT_ITEMS = "stream_text_generation_response"
_FILLERS = frozenset({"dummy", "tgi"})
"""Models that the library names, release by release, where it knows none."""
_DATA = ("data:", b"data:")
_PARAMETERS = {"max_new_tokens": "max_tokens", "return_full_text": "echo"}
"""TGI's names of parameters, and those of the other APIs."""
Lines: TypeAlias = "Iterator[str | bytes]"
AsyncLines: TypeAlias = "AsyncIterator[str | bytes]"


class _HuggingFace:
    """The adapter of huggingface_hub."""

    def install(self, host: Host) -> Patches:
        """Patch the library's clients, now or when they are imported."""
        patches = Patches("huggingface")
        for module, client in _CLIENTS.items():
            patches.when_imported(module, functools.partial(_patch, patches, host, client))
        return patches


ADAPTER = _HuggingFace()


def _patch(patches: Patches, host: Host, client: str, module: Any) -> None:
    kind = getattr(module, client)
    is_async = client.startswith("Async")
    post = _async if is_async else _sync
    prefix = "_async_" if is_async else "_"
    for name in (_CHAT_ITEMS, _TEXT_ITEMS):
        if not patches.replace(module, prefix + name, _items):
            return  # an unknown version, whose streams nobody would watch
    patches.replace(kind, "_inner_post", functools.partial(post, patches, host))
    if not patches.replace(module, "hf_raise_for_status", _checking) or is_async:
        patches.replace(kind, "_get_client_session", _opening)


def _sync(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _inner_post(self: Any, request_parameters: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, request_parameters) if patches.active else None
        if call is None:
            return original(self, request_parameters, *args, **kwargs)
        sending = _with_context(call, request_parameters)
        with call.sends():
            result = original(self, sending, *args, **kwargs)
        return _handed_over(call, result)

    return _inner_post


def _async(patches: Patches, host: Host, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _inner_post(self: Any, request_parameters: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begun(host, self, request_parameters) if patches.active else None
        if call is None:
            return await original(self, request_parameters, *args, **kwargs)
        sending = _with_context(call, request_parameters)
        with call.sends():
            result = await original(self, sending, *args, **kwargs)
        return _handed_over(call, result)

    return _inner_post


def _checking(original: Callable[..., Any]) -> Callable[..., Any]:
    """The reply's headers have come; nothing else of the response leaves the library."""

    @functools.wraps(original)
    def hf_raise_for_status(response: Any, *args: Any, **kwargs: Any) -> Any:
        if (call := current_call()) is not None:
            call.answered(response)
        return original(response, *args, **kwargs)

    return hf_raise_for_status


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    """As `_checking`, for aiohttp (0.x), of which the library makes a session for each call."""

    @functools.wraps(original)
    def _get_client_session(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = original(self, *args, **kwargs)
        if current_call() is not None:
            session._request = _answering(session._request)  # noqa: SLF001 - as the library does
        return session

    return _get_client_session


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    async def request(*args: Any, **kwargs: Any) -> Any:
        response = await original(*args, **kwargs)
        # Asked for again: the session is kept by the client, and the call must not be.
        if (call := current_call()) is not None:
            call.answered(response)
        return response

    return request


def _items(original: Callable[..., Any]) -> Callable[..., Any]:
    """The generator of a stream's items, watched if its lines are those of a call of ours."""

    @functools.wraps(original)
    def make(lines: Any, *args: Any, **kwargs: Any) -> Any:
        items = original(lines, *args, **kwargs)
        if not isinstance(lines, _Lines):
            return items
        reader = _LineReader(lines.call.reader, lines.recent)
        return ClientStream(lines.call.live, reader, closes=items).like(items, items)

    return make


class _Lines:
    """The lines of a stream, of which the last few are kept; only those with data say anything."""

    def __init__(self, call: ClientCall, lines: Any) -> None:
        self.call = call
        # Besides the last items the terminator and an error, of which no items are made.
        self.recent = deque[str | bytes](maxlen=LAST_ITEMS + 2)
        self._lines = lines

    def __iter__(self) -> Lines:
        keep = self.recent.append
        for line in self._lines:
            if line[:5] in _DATA:
                keep(line)
                yield line

    async def __aiter__(self) -> AsyncLines:
        keep = self.recent.append
        async for line in self._lines:
            if line[:5] in _DATA:
                keep(line)
                yield line


class _LineReader:
    """Reads, at each item of a stream, the line that it was made of."""

    def __init__(self, reader: ReplyReader, recent: deque[str | bytes]) -> None:
        self._reader = reader
        self._recent = recent

    def head(self, item: Any, at: float) -> Telling | None:  # noqa: ARG002 - a text tells nothing
        """Read the line of the item that has just come."""
        with guard("huggingface.head"):
            if self._reader.head(_said(self._recent.pop()), at) is not None:
                return Telling.LAST_FEW
        return None

    def tail(self, items: list[tuple[Any, float]], passed: float | None) -> None:
        """Read the lines of the last items, and those of which no items were made."""
        with guard("huggingface.tail"):
            lines = [_said(line) for line in self._recent]
            reply = self._reader.reply
            reply.terminator = DONE in lines
            reply.malformed += lines.count(MALFORMED)
            events = [line for line in lines if isinstance(line, Mapping)]
            errors = [(event, 0.0) for event in events if failure_in(event) is not None]
            told = [event for event in events if failure_in(event) is None][-len(items) or None :]
            times = [at for _, at in items][-len(told) or None :]
            self._reader.tail([*zip(told, times, strict=False), *errors], passed)

    def finish(self, live: LiveRequest, *, exhausted: bool) -> None:
        """Write what was read; a stream that was cut is told by its missing terminator."""
        self._reader.terminated = lambda: self._reader.reply.terminator
        self._reader.finish(live, exhausted=exhausted)


def _said(line: str | bytes) -> Any:
    """What a line with data says."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return parsed(Record(text.removeprefix("data:")))


def _handed_over(call: ClientCall, result: Any) -> Any:
    """What the application gets: the reply as it is, or the lines of a stream that is watched."""
    if call.silent:
        call.live.finish()
    elif isinstance(result, bytes):
        call.reply(_whole(result))
    else:
        return _Lines(call, result)
    return result


def _whole(body: bytes) -> Any:
    """What a reply says that came in one piece; bare vectors say nothing."""
    if len(body) > LARGEST_REPLY or body[:2] == b"[[":
        return {}
    found = parsed(Record(body.decode(errors="replace")))
    return {} if found is MALFORMED else found


def _with_context(call: ClientCall, request: Any) -> Any:
    """The request with our headers beside the application's; the object given stays as it is."""
    with guard("huggingface.headers"):
        headers = dict(request.headers)
        call.sending(headers)
        return replace(request, headers=headers)
    return request


def _begun(host: Host, client: Any, request: Any) -> ClientCall | None:
    with guard("huggingface.request"):
        body = request.json if isinstance(request.json, Mapping) else {}
        # The first releases call a chat a text generation.
        operation = "chat" if "messages" in body else _OPERATIONS.get(request.task)
        if operation is None:
            return None
        native = "inputs" in body
        dialect = TGI if native and operation == "text_completion" else CHAT
        call = start(host, _target(operation, request, body), dialect, client)
        if call is not None and (adapter := as_text(_parameters(body).get("adapter_id"))):
            call.live.annotate({semconv.LORA: adapter})
        return call
    return None


def _target(operation: str, request: Any, body: Mapping[str, Any]) -> Target:
    url = urlsplit(request.url)
    host = url.hostname or ""
    is_hub = f".{host}".endswith(".huggingface.co")
    tgi = "tgi" if "inputs" in body and operation == "text_completion" and not is_hub else None
    return Target(
        operation=operation,
        provider=provider_of(request.url) or tgi or "hugging_face",
        # Behind the hub's one address there are many engines.
        base_url=f"{request.url} {request.model}" if is_hub else f"{url.scheme}://{url.netloc}",
        body=_known(request, body),
        server_address=host or None,
        server_port=port_of(url),
    )


def _known(request: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with its parameters as the other APIs call them, and the model if there is one."""
    given = {_PARAMETERS.get(name, name): each for name, each in _parameters(body).items()}
    known = {**given, **body, "model": body.get("model") or request.model}
    if known["model"] in _FILLERS or str(known["model"]).startswith(("http://", "https://")):
        del known["model"]
    return known


def _parameters(body: Mapping[str, Any]) -> Mapping[str, Any]:
    given = body.get("parameters")
    return given if isinstance(given, Mapping) else {}
