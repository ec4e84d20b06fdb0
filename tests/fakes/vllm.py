"""VLLM's engine in small: the classes and attributes that the adapter reads, on a clock of ours.

The shapes are those of vLLM 0.32; `tests/adapters/test_vllm_names.py` compares them with the
real classes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from otel_llm.testing import ManualClock
from tests.fakes.vllm_state import (
    EngineCoreEventType,
    IterationStats,
    OutputProcessor,
    RequestSpecDecodeMetrics,
    RequestStateStats,
    SchedulerStats,
    Sequence,
    StatLoggerManager,
    admit,
    configuration,
)


class RequestOutputKind(Enum):
    """What each output holds: all tokens so far, the new ones, or everything at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """The parameters that decide the shape of a reply."""

    n: int = 1
    output_kind: RequestOutputKind = RequestOutputKind.DELTA
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0


@dataclass
class PoolingParams:
    """The parameters of a request that generates nothing."""

    task: str | None = "embed"


@dataclass
class LoRARequest:
    """The adapter that a request asks for."""

    lora_name: str


@dataclass
class CompletionOutput:
    """One sequence in an output."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None


@dataclass
class RequestOutput:
    """What `generate` yields."""

    request_id: str
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    num_cached_tokens: int | None = None


@dataclass
class PoolingRequestOutput:
    """What `encode` yields: the result, and no statistics."""

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    num_cached_tokens: int | None
    finished: bool


class VLLMError(Exception):
    """Base of the engine's errors."""


class VLLMClientError(VLLMError):
    """The request is at fault."""


class VLLMValidationError(VLLMClientError):
    """The request cannot be served as it is."""


class GracefulHTTPError(VLLMError):
    """The server refuses for now."""


class EngineGenerateError(VLLMError):
    """One generation failed."""


@dataclass
class Plan:
    """How the engine treats a request; times in seconds, tokens per sequence.

    Before token number *fail_at* it raises *error*; before token number *wait_at* it waits for
    ever. Before token number n it is preempted for `preempted[n]`. After each step the scheduler
    is as *load* says. The engine's monotonic clock is *skew* seconds ahead of ours.
    """

    preprocess: float = 0.004
    queue: float = 0.050
    prefill: float = 0.200
    per_token: float = 0.010
    tokens: int = 4
    prompt_tokens: int = 7
    cached: int | None = 0
    preempted: Mapping[int, float] = field(default_factory=dict)
    finish_reason: str = "stop"
    fail_at: int | None = None
    error: BaseException | None = None
    wait_at: int | None = None
    skew: float = 0.0
    load: SchedulerStats | None = None
    drafts: RequestSpecDecodeMetrics | None = None
    external_ids: bool = True


class AsyncLLM:
    """The engine; a subclass or a copy of this class is patched, never the real one.

    A clock may stand for a configuration; what is noted are the names of requests begun and
    ended, the outputs given, and the last trace headers.
    """

    def __init__(self, vllm_config: Any, *, clock: ManualClock | None = None) -> None:
        if clock is None:
            vllm_config, clock = configuration(), vllm_config
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.observability_config = vllm_config.observability_config
        self.clock: ManualClock = clock
        self.plan = Plan()
        self.log_stats = True
        self.output_processor = OutputProcessor(log_stats=True)
        self.logger_manager = StatLoggerManager()
        self.started: list[str] = []
        self.closed: list[str] = []
        self.yielded: list[Any] = []
        self.headers: Mapping[str, str] | None = None

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of *plan*; its time passes on *clock*."""
        self.started.append(request_id)
        self.headers = trace_headers
        try:
            async for output in self._outputs(sampling_params, request_id):
                self.yielded.append(output)
                yield output
        finally:
            self.closed.append(request_id)

    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yield the one result that comes after *plan*'s prefill."""
        self.started.append(request_id)
        self.headers = trace_headers
        try:
            sequences = self._admitted(pooling_params, request_id)
            await self._step(0, sequences, tokens=0)
            output = PoolingRequestOutput(
                request_id, [0.5], [1] * self.plan.prompt_tokens, self.plan.cached, finished=True
            )
            self.yielded.append(output)
            yield output
        finally:
            self.closed.append(request_id)

    async def _outputs(self, params: SamplingParams, name: str) -> AsyncGenerator[RequestOutput]:
        sequences = self._admitted(params, name)
        for number in range(self.plan.tokens):
            await self._step(number, sequences, tokens=1)
            for output in self._shown(params, name, [each.stats for each in sequences], number):
                yield output

    def _admitted(self, params: Any, name: str) -> list[Sequence]:
        """The request reaches the scheduler."""
        plan = self.plan
        self.clock.advance(plan.preprocess)
        self.output_processor.log_stats = self.log_stats
        known = admit(self.output_processor, name, params, external_ids=plan.external_ids)
        found = [Sequence(each or RequestStateStats(), self.clock, plan.skew) for each in known]
        _note(found, EngineCoreEventType.QUEUED)
        self.clock.advance(plan.queue)
        _note(found, EngineCoreEventType.SCHEDULED)
        return found

    async def _step(self, number: int, sequences: list[Sequence], *, tokens: int) -> None:
        """Time passes until output *number*, or something happens to it."""
        plan = self.plan
        if number in plan.preempted:
            _note(sequences, EngineCoreEventType.PREEMPTED)
            self.clock.advance(plan.preempted[number])
            _note(sequences, EngineCoreEventType.SCHEDULED)
        if number == plan.wait_at:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.clock.advance(plan.per_token if number else plan.prefill)
        if number == plan.fail_at and plan.error is not None:
            raise plan.error
        step = IterationStats()
        step.prompt_token_stats.computed = 0 if number else plan.prompt_tokens
        for each in sequences:
            each.output(step, tokens)
        self.logger_manager.record(
            engine_idx=0, scheduler_stats=plan.load, iteration_stats=step, mm_cache_stats=None
        )

    def _shown(
        self, params: SamplingParams, name: str, stats: list[RequestStateStats], number: int
    ) -> list[RequestOutput]:
        last = number + 1 == self.plan.tokens
        count = 1 if params.output_kind is RequestOutputKind.DELTA else number + 1
        made = [
            CompletionOutput(
                index,
                "x" * count,
                [5] * count,
                self.plan.finish_reason if last else None,
                self.plan.drafts if last else None,
            )
            for index in range(params.n)
        ]
        if params.output_kind is RequestOutputKind.FINAL_ONLY:
            return [self._output(name, made, stats[-1], finished=True)] if last else []
        return [
            self._output(name, [each], stat, finished=last)
            for each, stat in zip(made, stats, strict=True)
        ]

    def _output(
        self,
        name: str,
        outputs: list[CompletionOutput],
        stats: RequestStateStats,
        *,
        finished: bool,
    ) -> RequestOutput:
        return RequestOutput(
            request_id=name,
            prompt_token_ids=[1] * self.plan.prompt_tokens,
            outputs=outputs,
            finished=finished,
            metrics=stats if self.log_stats else None,
            num_cached_tokens=self.plan.cached,
        )


def _note(sequences: list[Sequence], kind: EngineCoreEventType) -> None:
    for each in sequences:
        each.note(kind)


def installed(monkeypatch: pytest.MonkeyPatch, *, private: bool = True) -> type[AsyncLLM]:
    """A fresh engine class, where the adapter looks for vLLM's.

    Without *private* there are none of the functions that vLLM does not document.
    """
    fresh: type[AsyncLLM] = type("AsyncLLM", (), dict(vars(AsyncLLM)))
    place(monkeypatch, "vllm.v1.engine.async_llm", AsyncLLM=fresh)
    if private:
        place(monkeypatch, "vllm.v1.engine.output_processor", OutputProcessor=OutputProcessor)
        place(monkeypatch, "vllm.v1.metrics.stats", IterationStats=IterationStats)
        place(monkeypatch, "vllm.v1.metrics.loggers", StatLoggerManager=StatLoggerManager)
    return fresh


def place(monkeypatch: pytest.MonkeyPatch, module: str, **content: Any) -> None:
    """Make a module of vLLM that holds *content*."""
    made = ModuleType(module)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, module, made)
