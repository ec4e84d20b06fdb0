"""Offline `LLM`: one batch span per call, and one request span per prompt below it.

The calls are synchronous and answer when the last prompt is done. Each request runs from the call
to the step in which the engine gave its result; its span is written then, with the engine's
stamps. What is left when the call ends, by an error, is written there.
"""

from __future__ import annotations

import functools
from typing import Any

from opentelemetry import context as context_api

from otel_llm import semconv
from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.adapters.vllm import describe
from otel_llm.adapters.vllm.calls import CURRENT, VllmCall, refused
from otel_llm.adapters.vllm.engine import noting, request_info, step_back
from otel_llm.emit.batch import BatchSpan
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.propagation.headers import injected
from otel_llm.timeline import Mark, Outcome

_METHODS = {
    "generate": "text_completion",
    "chat": "chat",
    "encode": "pooling",
    "embed": "embeddings",
    "classify": "classify",
    "reward": "reward",
    "score": "score",
}


def patch(llm: Any, patches: Patches, host: Host) -> None:
    """Replace every method of `LLM` that takes prompts, wherever in its bases it is defined."""
    for name, operation in _METHODS.items():
        owner = next((base for base in llm.__mro__ if name in vars(base)), None)
        if owner is not None:
            patches.replace(owner, name, functools.partial(_batched, patches, host, operation))
    patches.replace(llm, "__init__", functools.partial(_with_statistics, patches, host))


def patch_engine(llm_engine: Any, patches: Patches, host: Host) -> None:
    """See in which step each request ended, and note the engine's configuration."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(self, *args, **kwargs)
            batch = CURRENT.get()
            if patches.active and isinstance(batch, Batch):
                with guard("vllm.step"):
                    batch.stepped(outputs)
            return outputs

        return step

    patches.replace(llm_engine, "step", make)
    patches.replace(llm_engine, "__init__", functools.partial(noting, host))


def _with_statistics(patches: Patches, host: Host, original: Any) -> Any:
    """`LLM` keeps no statistics unless asked, and then knows no times; a user's word is kept."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if patches.active and host.vllm_stats():
            kwargs.setdefault("disable_log_stats", False)
        original(self, *args, **kwargs)

    return init


def _batched(patches: Patches, host: Host, operation: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = None
        if patches.active and not isinstance(CURRENT.get(), Batch):  # `embed` calls `encode`
            with guard("vllm.batch"):
                if (telemetry := host.telemetry()) is not None:
                    batch = Batch(telemetry, self, operation)
        if batch is None:
            return original(self, *args, **kwargs)
        with batch:
            return original(self, *args, **kwargs)

    return call


class Batch:
    """One call of `LLM` and its requests."""

    def __init__(self, telemetry: Telemetry, llm: Any, operation: str) -> None:
        self._telemetry = telemetry
        self._engine = getattr(llm, "llm_engine", None)
        self._operation = operation
        self._requests: dict[object, _Request] = {}
        step_back(telemetry, self._engine)
        self._native = describe.traces_natively(self._engine)
        self._span = BatchSpan(telemetry, operation, describe.model_of(self._engine))

    def __enter__(self) -> None:
        self._token = context_api.attach(self._span.context)
        self._outer = CURRENT.set(self)

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        CURRENT.reset(self._outer)
        context_api.detach(self._token)
        with guard("vllm.batch"):
            for request in self._requests.values():
                self._write(request, error)
        with guard("vllm.batch_end"):
            self._span.finish(error)

    def take(self, name: object, stats: Any, asked: Any = None, sent: Any = None) -> None:
        """A sequence of request *name* is about to be sent to the engine."""
        now = self._telemetry.clock.monotonic_ns()
        params = getattr(asked, "sampling_params", None)
        known = self._requests.get(name)
        if known is None:
            expected = max(1, getattr(params, "n", None) or 1)
            call = VllmCall(expected, now, delta=False, generates=params is not None)
            call.name = name
            known = self._requests[name] = _Request(call, params)
            if self._native:
                known.live = self._open(known)
        known.call.expected = max(known.call.expected, len(known.call.states) + 1)
        known.call.take(name, stats)
        if known.live is not None and sent is not None:  # vLLM's own spans shall be below ours
            given = getattr(sent, "trace_headers", None) or {}
            sent.trace_headers = {**given, **injected(known.live.context)}

    def stepped(self, outputs: Any) -> None:
        """Note which requests have ended."""
        now = self._telemetry.clock.monotonic_ns()
        for output in outputs:
            request = self._requests.get(output.request_id)
            if request is not None and output.finished:
                request.ended_ns = now
                request.call.keep(output)
                self._write(request, None)  # now: thousands at the end would flood the exporter
                del self._requests[output.request_id]

    def _open(self, request: _Request) -> LiveRequest:
        params = request.params
        return self._span.request(
            request_info(self._operation, self._engine, params, self._telemetry)
        )

    def _write(self, request: _Request, error: BaseException | None) -> None:
        call = request.call
        live = request.live or self._open(request)
        recorder = live.recorder
        recorder.call(call, call.expected)
        recorder.generates = call.generates
        recorder.role = describe.role_of(self._engine)
        recorder.mark(Mark.QUEUED, call.handed_over_ns)
        live.annotate({semconv.REQUEST_ID: str(call.name)})
        if request.ended_ns is not None:
            recorder.mark(Mark.LAST_TOKEN, request.ended_ns)
            recorder.ending(end_record=True)
            if call.failure is not None:
                recorder.fail(Outcome.ERROR, call.failure)
        elif error is not None and refused(error):  # another prompt; this one was taken back
            recorder.fail(Outcome.CANCELLED, None)
        elif error is not None:
            live.fail(error)
        live.finish(request.ended_ns)


class _Request:
    """One prompt of a batch."""

    def __init__(self, call: VllmCall, params: Any) -> None:
        self.call = call
        self.params = params
        self.live: LiveRequest | None = None
        self.ended_ns: int | None = None
