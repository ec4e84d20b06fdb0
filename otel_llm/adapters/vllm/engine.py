"""`AsyncLLM.generate` and `encode`: below an open request, or as requests of their own.

Every route of the server calls one of them. Used directly, in a script or below a server that is
not ours (gRPC), a call is a request itself: its span has the side `engine`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context

from otel_llm import semconv
from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.adapters.vllm import describe, state
from otel_llm.adapters.vllm.calls import VllmCall, watched, watched_several
from otel_llm.emit.content import as_messages
from otel_llm.emit.live import LiveRequest, current_request
from otel_llm.emit.request import RequestInfo, request_parameters
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.propagation.headers import extract, injected
from otel_llm.timeline import Mark, Side

PROVIDER = "vllm"
LONGEST_ID = 256
"""Request ids come from clients (`X-Request-Id`)."""
_HEARS = frozenset({"transcription", "translation"})
"""Operations on one uploaded file."""
_OPERATIONS = {"embed": "embeddings", "classify": "classify", "score": "score"}
_PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "n",
    "frequency_penalty",
    "presence_penalty",
)


def patch(async_llm: Any, patches: Patches, host: Host) -> None:
    """Replace both functions, and note the configuration of each engine that is made."""
    for name in ("generate", "encode"):
        patches.replace(async_llm, name, functools.partial(_wrapper, patches, host, name))
    patches.replace(async_llm, "__init__", functools.partial(noting, host))


def noting(host: Host, original: Any) -> Any:
    """A constructor of engines that notes their configuration."""

    @functools.wraps(original)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        with guard("vllm.describe"):
            host.engine.update(describe.configuration(vllm_config))
        original(self, vllm_config, *args, **kwargs)

    return init


def _wrapper(patches: Patches, host: Host, name: str, original: Any) -> Any:
    signature = inspect.signature(original)
    parameters = list(signature.parameters)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not patches.active:
            return original(self, *args, **kwargs)
        live = current_request()
        if live is None:
            with guard(f"vllm.{name}"):
                if (telemetry := host.telemetry()) is not None:
                    signature.bind(self, *args, **kwargs)  # a wrong call fails at once, as before
                    given = _given(parameters, args, kwargs)
                    parent = _parent(given, trust=host.server().trust_remote)
                    return _Direct(telemetry, self, name, original, given, parent).outputs()
            return original(self, *args, **kwargs)
        inner = original(self, *args, **kwargs)
        with guard(f"vllm.{name}"):
            given = _given(parameters, args, kwargs)
            if not _asks_for_the_language(given):
                return begun(inner, live, self, given)
        return inner

    return call


def _given(parameters: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, without `self`."""
    return dict(zip(parameters[1:], args, strict=False)) | kwargs


def _asks_for_the_language(given: Mapping[str, Any]) -> bool:
    """Whether vLLM asks the model what language a recording is in, before it has it written down.

    That is part of the request's preparation: its token is not the first of the answer.
    """
    allowed = getattr(given.get("sampling_params"), "allowed_token_ids", None)
    return bool(allowed) and str(given.get("request_id")).endswith("-lang_detect")


def begun(inner: Any, live: LiveRequest, engine: Any, given: Mapping[str, Any]) -> Any:
    """Note that the request was handed to the engine, and watch its outputs."""
    recorder = live.recorder
    now = recorder.clock.monotonic_ns()
    call = _call(given, now)
    recorder.call(call, call.expected)
    recorder.generates = recorder.generates and call.generates
    if live.captures_content and call.generates:
        call.texts = {}
    rank = given.get("data_parallel_rank")
    if len(recorder.calls) == 1:
        recorder.mark(Mark.QUEUED, now)
        recorder.role = describe.role_of(engine)
        _name(live, engine, given)
        if live.info.operation in _HEARS:
            live.annotate({semconv.INPUT_AUDIO: 1})
        queued = state.replica(engine, rank, semconv.REPLICA_WHEN_QUEUED)
        live.annotate({**_facts(given), **queued})
    call.at_end = functools.partial(_ended, live.reference, engine, rank)
    call.name = given.get("request_id")
    several = call.expected > 1 or call.texts is not None
    return (watched_several if several else watched)(inner, live, call)


def _name(live: LiveRequest, engine: Any, given: Mapping[str, Any]) -> None:
    """Name the model of a request whose body was not read: an upload, or a very long one."""
    if live.info.model is not None:
        return
    adapter = getattr(given.get("lora_request"), "lora_name", None)
    model = adapter or describe.only_model_of(engine)
    if model is not None:
        live.info = replace(live.info, model=model)
        live.span.update_name(live.info.span_name)
        live.annotate({semconv.REQUEST_MODEL: model})


def _ended(
    reference: Callable[[], LiveRequest | None], engine: Any, rank: int | None, call: VllmCall
) -> None:
    """Note what is known once a call is over; the call itself does not keep its request alive."""
    live = reference()
    if live is None:
        return
    live.annotate(state.replica(engine, rank, semconv.REPLICA_WHEN_FINISHED))
    call.drafted = call.drafts()
    drafts = [getattr(each, "drafted", None) for each in live.recorder.calls]
    if drafts and None not in drafts:
        drafted, accepted = map(sum, zip(*drafts, strict=True))
        live.annotate({semconv.DRAFT_TOKENS: drafted, semconv.ACCEPTED_TOKENS: accepted})


def _call(given: Mapping[str, Any], now_ns: int) -> VllmCall:
    if "pooling_params" in given:
        return VllmCall(1, now_ns, delta=False, generates=False)
    params = given.get("sampling_params")
    delta = getattr(getattr(params, "output_kind", None), "name", None) == "DELTA"
    return VllmCall(max(1, getattr(params, "n", None) or 1), now_ns, delta=delta)


def _facts(given: Mapping[str, Any]) -> dict[str, object]:
    return {
        semconv.REQUEST_ID: str(given.get("request_id", ""))[:LONGEST_ID] or None,
        semconv.LORA: getattr(given.get("lora_request"), "lora_name", None),
        semconv.REPLICA: given.get("data_parallel_rank"),
    }


class _Direct:
    """A call that is a request itself, from its first read to the end of its outputs."""

    def __init__(
        self,
        telemetry: Telemetry,
        engine: Any,
        name: str,
        original: Callable[..., AsyncGenerator[Any, None]],
        given: dict[str, Any],
        parent: Context,
    ) -> None:
        self._parent = parent
        self._telemetry = telemetry
        self._engine = engine
        self._name = name
        self._original = original
        self._given = given

    async def outputs(self) -> AsyncGenerator[Any, None]:
        """The engine's outputs, watched."""
        live: LiveRequest | None = None
        with guard("vllm.direct"):
            live = self._started()
        inner = self._original(self._engine, **self._given)
        if live is not None:
            with guard("vllm.begun"):
                inner = begun(inner, live, self._engine, self._given)
        try:
            async for output in inner:
                yield output
            if live is not None:
                live.recorder.ending(end_record=True)
        finally:
            await inner.aclose()
            if live is not None:
                live.finish()

    def _started(self) -> LiveRequest:
        """Open the span, below whoever calls or whoever the caller's headers name."""
        given = self._given
        step_back(self._telemetry, self._engine)
        live = self._telemetry.start(self._info(), Side.ENGINE, parent=self._parent)
        params = given.get("sampling_params")
        kind = getattr(getattr(params, "output_kind", None), "name", None)
        live.recorder.streaming = self._name == "generate" and kind != "FINAL_ONLY"
        if live.captures_content:
            live.content(semconv.INPUT_MESSAGES, as_messages(given.get("prompt")))
        if describe.traces_natively(self._engine):
            given["trace_headers"] = {
                **(given.get("trace_headers") or {}),
                **injected(live.context),
            }
        return live

    def _info(self) -> RequestInfo:
        given = self._given
        if self._name == "generate":
            operation, params = "text_completion", given.get("sampling_params")
        else:
            operation, params = _pooling_operation(given.get("pooling_params")), None
        return request_info(operation, self._engine, params, self._telemetry)


def step_back(telemetry: Telemetry, engine: Any) -> None:
    """Write no phase spans where *engine* writes its own."""
    if telemetry.settings.phase_spans and describe.writes_phase_spans(engine):
        telemetry.step_back()


def _pooling_operation(params: Any) -> str:
    task = getattr(params, "task", None)
    return _OPERATIONS.get(task, "pooling") if isinstance(task, str) else "pooling"


def request_info(operation: str, engine: Any, params: Any, telemetry: Telemetry) -> RequestInfo:
    """What is known of a request that no server announced."""
    body = {name: getattr(params, name, None) for name in _PARAMETERS} if params is not None else {}
    if body.get("top_k") in {0, -1}:
        body["top_k"] = None  # all tokens are considered
    attributes = request_parameters(body, telemetry.settings.vocabulary)
    return RequestInfo(operation, PROVIDER, describe.model_of(engine), attributes=attributes)


def _parent(given: Mapping[str, Any], *, trust: bool) -> Context:
    """The current span's context, or that of the headers that were handed to the engine."""
    current = context_api.get_current()
    if trace.get_current_span(current).get_span_context().is_valid or not trust:
        return current
    return extract(given.get("trace_headers"), current)
