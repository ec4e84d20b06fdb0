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


@dataclass
class LoRARequest:
    """The adapter that a request asks for."""

    lora_name: str


@dataclass
class RequestStateStats:
    """Live statistics of one sequence; 0.0 until it happened."""

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0


@dataclass
class CompletionOutput:
    """One sequence in an output."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    """What `generate` yields."""

    request_id: str
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    num_cached_tokens: int | None = None


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
    ever. The engine's monotonic clock is *skew* seconds ahead of ours.
    """

    preprocess: float = 0.004
    queue: float = 0.050
    prefill: float = 0.200
    per_token: float = 0.010
    tokens: int = 4
    prompt_tokens: int = 7
    cached: int | None = 0
    preemptions: int = 0
    finish_reason: str = "stop"
    fail_at: int | None = None
    error: BaseException | None = None
    wait_at: int | None = None
    skew: float = 0.0


@dataclass
class AsyncLLM:
    """The engine; a subclass or a copy of this class is patched, never the real one."""

    clock: ManualClock
    plan: Plan = field(default_factory=Plan)
    log_stats: bool = True
    started: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    yielded: list[RequestOutput] = field(default_factory=list)
    headers: Mapping[str, str] | None = None

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

    async def _outputs(self, params: SamplingParams, name: str) -> AsyncGenerator[RequestOutput]:
        plan = self.plan
        stats = [RequestStateStats(num_preemptions=plan.preemptions) for _ in range(params.n)]
        self.clock.advance(plan.preprocess)
        for each in stats:
            each.queued_ts = self._now()
        self.clock.advance(plan.queue)
        for each in stats:
            each.scheduled_ts = self._now()
        for number in range(plan.tokens):
            await self._step(number)
            for each in stats:
                each.first_token_ts = each.first_token_ts or self._now()
                each.last_token_ts = self._now()
                each.num_generation_tokens += 1
            for output in self._shown(params, name, stats, number):
                yield output

    async def _step(self, number: int) -> None:
        """Time passes until token *number*, or something happens to it."""
        if number == self.plan.wait_at:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.clock.advance(self.plan.per_token if number else self.plan.prefill)
        if number == self.plan.fail_at and self.plan.error is not None:
            raise self.plan.error

    def _shown(
        self, params: SamplingParams, name: str, stats: list[RequestStateStats], number: int
    ) -> list[RequestOutput]:
        last = number + 1 == self.plan.tokens
        count = 1 if params.output_kind is RequestOutputKind.DELTA else number + 1
        made = [
            CompletionOutput(index, "x" * count, [5] * count, self._reason(last))
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

    def _reason(self, last: bool) -> str | None:
        return self.plan.finish_reason if last else None

    def _now(self) -> float:
        return self.clock.monotonic_ns() / 1e9 + self.plan.skew


def installed(monkeypatch: pytest.MonkeyPatch) -> type[AsyncLLM]:
    """A fresh engine class, where the adapter looks for vLLM's."""
    fresh: type[AsyncLLM] = type("AsyncLLM", (), dict(vars(AsyncLLM)))
    module = ModuleType("vllm.v1.engine.async_llm")
    module.AsyncLLM = fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fresh
