"""VLLM's `LLM` in small: the synchronous engine, and the methods that take lists of prompts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import pytest

from otel_llm.testing import ManualClock
from tests.fakes import vllm
from tests.fakes.vllm import (
    CompletionOutput,
    Plan,
    PoolingParams,
    PoolingRequestOutput,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    VLLMValidationError,
)
from tests.fakes.vllm_state import (
    EngineCoreEventType,
    IterationStats,
    OutputProcessor,
    RequestStateStats,
    Sequence,
    StatLoggerManager,
    admit,
    configuration,
)

BAD = "a prompt that is refused"
AT_ONCE = 2
"""How many requests run side by side."""


@dataclass
class _Job:
    name: str
    params: Any
    sequences: list[Sequence]
    done: int = 0


class LLMEngine:
    """Runs requests two at a time; each step takes the time that *plan* says."""

    def __init__(
        self, vllm_config: Any, clock: ManualClock, plan: Plan, *, log_stats: bool
    ) -> None:
        self.vllm_config = vllm_config
        self.model_config = self.vllm_config.model_config
        self.clock = clock
        self.plan = plan
        self.log_stats = log_stats
        self.output_processor = OutputProcessor(log_stats=log_stats)
        self.logger_manager = StatLoggerManager()
        self._waiting: list[_Job] = []
        self._running: list[_Job] = []

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        """Queue a request; a bad one is refused."""
        if prompt == BAD:
            raise VLLMValidationError("secret")
        self.clock.advance(self.plan.preprocess)
        stats = admit(
            self.output_processor, request_id, params, external_ids=self.plan.external_ids
        )
        found = [Sequence(each or RequestStateStats(), self.clock) for each in stats]
        for each in found:
            each.note(EngineCoreEventType.QUEUED)
        self._waiting.append(_Job(request_id, params, found))

    def abort(self) -> None:
        """Forget all requests."""
        self._waiting, self._running = [], []

    def has_unfinished_requests(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._waiting or self._running)

    def step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """One step: the results of the requests that it finished."""
        plan = self.plan
        if not self._running:
            self._running, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            self.clock.advance(plan.queue)
            for sequence in (each for job in self._running for each in job.sequences):
                sequence.note(EngineCoreEventType.SCHEDULED)
        number = self._running[0].done
        self.clock.advance(plan.per_token if number else plan.prefill)
        if number == plan.fail_at and plan.error is not None:
            raise plan.error
        return self._computed(IterationStats())

    def _computed(self, step: IterationStats) -> list[RequestOutput | PoolingRequestOutput]:
        found: list[RequestOutput | PoolingRequestOutput] = []
        for job in list(self._running):
            pooling = isinstance(job.params, PoolingParams)
            job.done += 1
            for each in job.sequences:
                each.output(step, 0 if pooling else 1)
            if pooling or job.done == self.plan.tokens:
                self._running.remove(job)
                found.append(self._pooled(job) if pooling else self._generated(job))
        return found

    def _pooled(self, job: _Job) -> PoolingRequestOutput:
        ids = [1] * self.plan.prompt_tokens
        return PoolingRequestOutput(job.name, [0.5], ids, self.plan.cached, finished=True)

    def _generated(self, job: _Job) -> RequestOutput:
        made = [
            CompletionOutput(index, "x" * job.done, [5] * job.done, self.plan.finish_reason)
            for index in range(len(job.sequences))
        ]
        metrics = job.sequences[-1].stats if self.log_stats else None
        ids = [1] * self.plan.prompt_tokens
        return RequestOutput(job.name, ids, made, True, metrics, self.plan.cached)


class PoolingOfflineMixin:
    """The methods for models that generate nothing; some of them call `encode`."""

    def encode(self, prompts: Many[str], pooling_params: PoolingParams | None = None) -> list[Any]:
        """One result for each prompt."""
        return self._run(prompts, pooling_params or PoolingParams())

    def embed(self, prompts: Many[str]) -> list[Any]:
        """One embedding for each prompt."""
        return self.encode(prompts, PoolingParams("embed"))

    def classify(self, prompts: Many[str]) -> list[Any]:
        """The classes of each prompt."""
        return self.encode(prompts, PoolingParams("classify"))

    def score(self, data_1: str, data_2: Many[str]) -> list[Any]:
        """How each of *data_2* suits *data_1*."""
        return self._run([data_1 + each for each in data_2], PoolingParams("classify"))

    def _run(self, prompts: Many[Any], params: Any) -> list[Any]:
        raise NotImplementedError


class LLM(PoolingOfflineMixin):
    """What scripts use. *clock* and *plan* are not vLLM's."""

    def __init__(
        self, model: str, *, clock: ManualClock, plan: Plan | None = None, **kwargs: Any
    ) -> None:
        if "disable_log_stats" not in kwargs:
            kwargs["disable_log_stats"] = True
        stats = not kwargs["disable_log_stats"]
        self.llm_engine = LLMEngine(configuration(), clock, plan or Plan(), log_stats=stats)
        self._counter = 0

    def generate(
        self, prompts: Many[str], sampling_params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """One output for each prompt, in their order."""
        return self._run(prompts, sampling_params or SamplingParams())

    def chat(
        self, messages: Many[Any], sampling_params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """One answer for each conversation."""
        return self._run(messages, sampling_params or SamplingParams())

    def _run(self, prompts: Many[Any], params: Any) -> list[Any]:
        engine, found = self.llm_engine, []
        if isinstance(params, SamplingParams):
            params.output_kind = RequestOutputKind.FINAL_ONLY
        try:
            for prompt in prompts:
                engine.add_request(str(self._counter), prompt, params)
                self._counter += 1
        except Exception:
            engine.abort()
            raise
        while engine.has_unfinished_requests():
            found += engine.step()
        return sorted(found, key=lambda each: int(each.request_id))


def installed(monkeypatch: pytest.MonkeyPatch, *, private: bool = True) -> None:
    """`LLM` and its engine, where the adapter looks for them; see `tests.fakes.vllm`."""
    vllm.installed(monkeypatch, private=private)
    vllm.place(monkeypatch, "vllm.v1.engine.llm_engine", LLMEngine=LLMEngine)
    vllm.place(monkeypatch, "vllm.entrypoints.llm", LLM=LLM)
