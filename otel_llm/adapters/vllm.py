"""vLLM: the request spans of its OpenAI server, with the engine's own stamps.

Two functions are replaced. `AsyncLLM.generate`, which every generating route calls: its outputs
carry the live per-request statistics (`RequestOutput.metrics`, vLLM 0.11.1 and newer), from
which queue, prefill and decode are read when the request ends. And
`FastAPI.build_middleware_stack`: an application that holds a vLLM engine gets our middleware as
its outermost one, however the server was started. Nothing of vLLM is imported here.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from otel_llm import semconv
from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.emit.live import LiveRequest, current_request
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.servers.asgi import InferenceMiddleware, InsideMiddleware, ServerSettings
from otel_llm.timeline import EngineStamps, Mark, Tokens
from otel_llm.timeline.gaps import FOLD_AT, OutputTimes

PROVIDER = "vllm"
LONGEST_ID = 256
"""Request ids come from clients (`X-Request-Id`)."""
_REFUSALS = frozenset({"VLLMClientError", "GracefulHTTPError", "VLLMValidationError", "ValueError"})
"""Exceptions, by class name, with which vLLM refuses a request; its server answers 4xx or 503."""


class VllmAdapter:
    """Patches vLLM's asynchronous engine and its server."""

    def install(self, host: Host) -> Patches:
        """Patch vLLM and FastAPI as they are imported."""
        patches = Patches(PROVIDER)
        patches.when_imported(
            "vllm.v1.engine.async_llm",
            lambda module: _patch_engine(module.AsyncLLM, patches),
        )
        patches.when_imported(
            "fastapi.applications",
            lambda module: _patch_server(module.FastAPI, patches, host),
        )
        return patches


ADAPTER = VllmAdapter()


def _patch_server(fastapi: Any, patches: Patches, host: Host) -> None:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def build_middleware_stack(app: Any) -> Any:
            if patches.active:
                with guard("vllm.middleware"):
                    _add_middleware(app, host, patches)
            return original(app)

        return build_middleware_stack

    patches.replace(fastapi, "build_middleware_stack", make)


def _add_middleware(app: Any, host: Host, patches: Patches) -> None:
    """Wrap an application that serves a vLLM engine; other FastAPI applications are left alone."""
    from starlette.middleware import Middleware

    if not _serves_vllm(app) or any(_is_ours(each.cls) for each in app.user_middleware):
        return
    made = host.telemetry()  # makes the providers, before the first request
    if made is None:
        return
    made.instruments.know(_served_names(app))

    def telemetry() -> Telemetry | None:
        return host.telemetry() if patches.active else None

    inject = _traces_natively(app)

    def settings() -> ServerSettings:
        return replace(host.server(), provider=PROVIDER, inject=inject)

    ours = Middleware(InferenceMiddleware, telemetry=telemetry, settings=settings)
    app.user_middleware.insert(0, ours)


def _is_ours(middleware: Any) -> bool:
    ours = (InferenceMiddleware, InsideMiddleware)
    return isinstance(middleware, type) and issubclass(middleware, ours)


def _serves_vllm(app: Any) -> bool:
    """By the engine in the application's state, or its arguments where the stack is built early."""
    state = app.state
    return (
        getattr(state, "engine_client", None) is not None
        or getattr(getattr(state, "args", None), "served_model_name", _MISSING) is not _MISSING
    )


_MISSING = object()


def _served_names(app: Any) -> list[str]:
    """The names under which vLLM serves its model, as far as its arguments tell."""
    names = getattr(getattr(app.state, "args", None), "served_model_name", None)
    return [names] if isinstance(names, str) else [str(each) for each in names or ()]


def _traces_natively(app: Any) -> bool:
    """Whether vLLM writes `llm_request` spans of its own, which shall be children of ours."""
    args = getattr(app.state, "args", None)
    return getattr(args, "otlp_traces_endpoint", None) is not None


def _patch_engine(async_llm: Any, patches: Patches) -> None:
    def make(original: Any) -> Any:
        parameters = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            inner = original(self, *args, **kwargs)
            live = current_request() if patches.active else None
            if live is None:
                return inner
            with guard("vllm.generate"):
                given = dict(zip(parameters[1:], args, strict=False)) | kwargs
                call = _begin(live, given, self)
                several = call.expected > 1 or call.texts is not None
                return (_watch_several if several else _watch)(inner, live, call)
            return inner

        return generate

    patches.replace(async_llm, "generate", make)


class VllmCall:
    """One call of `AsyncLLM.generate`: what its outputs leave behind, read when needed.

    `RequestOutput.metrics` is one live object per sequence. In deltas it belongs to the first
    sequence in the output, since the engine merges later ones into an output not yet taken; in a
    final output of several sequences it is that of whichever finished last.
    """

    __slots__ = (
        "_counted",
        "_metrics",
        "_reasons",
        "_settled",
        "delta",
        "expected",
        "handed_over_ns",
        "last",
        "look_up",
        "texts",
    )

    def __init__(self, expected: int, handed_over_ns: int, *, delta: bool) -> None:
        self.expected = expected
        self.delta = delta
        self.handed_over_ns = handed_over_ns
        self.last: Any = None
        self.look_up: Callable[[], list[Any]] | None = None
        self.texts: dict[int, list[str]] | None = None
        self._metrics: dict[int, Any] = {}
        self._reasons: dict[int, str] = {}
        self._counted: dict[int, int] = {}
        self._settled: tuple[list[EngineStamps], Tokens] | None = None

    def keep(self, output: Any) -> None:
        """Keep what is needed of an output: metrics, finish reasons, and token counts."""
        self.last = output
        if output.metrics is not None and output.outputs:
            self._metrics[output.outputs[0].index] = output.metrics
        for each in output.outputs:
            before = self._counted.get(each.index, 0) if self.delta else 0
            self._counted[each.index] = before + len(each.token_ids)
            if each.finish_reason is not None:
                self._reasons[each.index] = each.finish_reason
            if self.texts is not None:
                pieces = self.texts.setdefault(each.index, [])
                if not self.delta:
                    pieces.clear()
                pieces.append(each.text)

    def settle(self) -> None:
        """The call is over: keep what it says, and let go of its outputs."""
        self._settled = self.stamps(), self.tokens()
        self.last = self.look_up = None
        self._metrics.clear()

    def stamps(self) -> list[EngineStamps]:
        """The stamps of each sequence seen, as vLLM has them now."""
        if self._settled is not None:
            return self._settled[0]
        if not self._counted and self.last is not None:
            if self.delta:
                reasons = [each.finish_reason for each in self.last.outputs]
                return [self._stamps(self.last.metrics, None, reasons[0] if reasons else None)]
            self.keep(self.last)
        if self.last is None and self.look_up is not None:
            return [self._stamps(stats, None, None) for stats in self.look_up()]
        return [
            self._stamps(self._metrics.get(index), count, self._reasons.get(index))
            for index, count in sorted(self._counted.items())
        ]

    def messages(self) -> list[dict[str, Any]]:
        """The answers kept so far, in the conventions' form."""
        return [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "".join(pieces)}],
                "finish_reason": self._reasons.get(index),
            }
            for index, pieces in sorted((self.texts or {}).items())
        ]

    def tokens(self) -> Tokens:
        """Prompt and cached tokens of the call; output tokens are known per sequence."""
        if self._settled is not None:
            return self._settled[1]
        if self.last is None:
            return Tokens()
        prompt = self.last.prompt_token_ids
        return Tokens(
            input=len(prompt) if prompt is not None else None,
            cached=getattr(self.last, "num_cached_tokens", None),
        )

    def _stamps(self, metrics: Any, counted: int | None, finish_reason: str | None) -> EngineStamps:
        generated = getattr(metrics, "num_generation_tokens", None)
        return EngineStamps(
            queued=getattr(metrics, "queued_ts", None),
            scheduled=getattr(metrics, "scheduled_ts", None),
            first_token=getattr(metrics, "first_token_ts", None),
            last_token=getattr(metrics, "last_token_ts", None),
            handed_over_ns=self.handed_over_ns,
            output_tokens=generated if counted is None else counted,
            preemptions=getattr(metrics, "num_preemptions", None),
            finish_reason=finish_reason,
        )


def _begin(live: LiveRequest, given: dict[str, Any], engine: Any) -> VllmCall:
    """Note that the request was handed to the engine; its own stamp of that comes later."""
    recorder = live.recorder
    now = recorder.clock.monotonic_ns()
    params = given.get("sampling_params")
    delta = getattr(getattr(params, "output_kind", None), "name", None) == "DELTA"
    call = VllmCall(max(1, getattr(params, "n", None) or 1), now, delta=delta)
    call.look_up = functools.partial(_live_stats, engine, given.get("request_id"))
    if live.captures_content:
        call.texts = {}
    recorder.call(call, call.expected)
    if len(recorder.calls) == 1:
        recorder.mark(Mark.QUEUED, now)
        live.annotate(
            {
                semconv.REQUEST_ID: str(given.get("request_id", ""))[:LONGEST_ID] or None,
                semconv.LORA: getattr(given.get("lora_request"), "lora_name", None),
                semconv.REPLICA: given.get("data_parallel_rank"),
            }
        )
    return call


async def _watch(
    inner: AsyncGenerator[Any, None], live: LiveRequest, call: VllmCall
) -> AsyncGenerator[Any, None]:
    """Pass outputs through: one clock read and one append each."""
    lane = live.recorder.lane()
    stamps, append, clock = lane.stamps, lane.stamps.append, live.recorder.clock.monotonic_ns
    try:
        async for output in inner:
            append(clock())
            call.last = output
            if len(stamps) >= FOLD_AT:
                lane.fold()
            if output.metrics is None:
                with guard("vllm.keep"):
                    call.keep(output)
            yield output
    except BaseException as error:
        _failed(live, error)
        raise
    finally:
        await _close(inner, call)


async def _watch_several(
    inner: AsyncGenerator[Any, None], live: LiveRequest, call: VllmCall
) -> AsyncGenerator[Any, None]:
    """Pass outputs of several sequences through, and of one whose answer is to be written."""
    lanes: defaultdict[int, OutputTimes] = defaultdict(live.recorder.lane)
    clock = live.recorder.clock.monotonic_ns
    try:
        async for output in inner:
            now = clock()
            with guard("vllm.keep"):
                for each in output.outputs:
                    lanes[each.index].add(now)
                call.keep(output)
                if output.finished and call.texts is not None:
                    live.answer(call, call.messages())
            yield output
    except BaseException as error:
        _failed(live, error)
        raise
    finally:
        await _close(inner, call)


async def _close(inner: Any, call: VllmCall) -> None:
    """Close vLLM's generator as our reader closed ours, whoever else has wrapped it."""
    with guard("vllm.settle"):
        call.settle()
    if hasattr(inner, "aclose"):
        await inner.aclose()


def _live_stats(engine: Any, request_id: object) -> list[Any]:
    """The statistics of a request that has given no output yet, from vLLM's private tables.

    A plain reply is one output at the end; a request that ends before it is known only here.
    """
    with guard("vllm.look_up"):
        processor = getattr(engine, "output_processor", None)
        names = getattr(processor, "external_req_ids", {}).get(request_id, [request_id])
        states = getattr(processor, "request_states", {})
        found = [getattr(states.get(name), "stats", None) for name in names]
        return [stats for stats in found if stats is not None]
    return []


def _failed(live: LiveRequest, error: BaseException) -> None:
    if not live.finished:
        with guard("vllm.failed"):
            names = {kind.__name__ for kind in type(error).__mro__}
            live.fail(error, refused=not _REFUSALS.isdisjoint(names))
