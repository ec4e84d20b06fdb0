"""What vLLM keeps of its requests and of itself, in small: the functions that nobody documents.

The shapes are those of vLLM 0.32; `tests/adapters/test_vllm_names.py` compares them with the
real classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from otel_llm.testing import ManualClock


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
class RequestSpecDecodeMetrics:
    """What was drafted for a sequence; `histogram[n]` steps accepted n tokens."""

    num_spec_tokens: int
    histogram: list[int]
    num_draft_tokens: int


class EngineCoreEventType(IntEnum):
    """What happens to a request in the scheduler."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


@dataclass
class EngineCoreEvent:
    """One of those, and when: seconds of the engine's monotonic clock."""

    type: EngineCoreEventType
    timestamp: float


@dataclass
class EngineCoreRequest:
    """A sequence on its way to the engine."""

    request_id: str
    sampling_params: Any = None
    pooling_params: Any = None
    external_req_id: str | None = None


@dataclass
class ParentRequest:
    """What several sequences of one request have in common: its parameters as they were given."""

    request_id: str
    sampling_params: Any


@dataclass
class RequestState:
    """What the front end keeps of a sequence that the engine has."""

    stats: RequestStateStats | None


class OutputProcessor:
    """Knows every sequence that the engine has."""

    def __init__(self, *, log_stats: bool) -> None:
        self.log_stats = log_stats
        self.request_states: dict[str, RequestState] = {}

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: Any = None,
    ) -> None:
        """Take a sequence on."""
        stats = RequestStateStats() if self.log_stats else None
        self.request_states[request.request_id] = RequestState(stats)


@dataclass
class PromptTokenStats:
    """Prompt tokens of a step by where they came from."""

    computed: int = 0


class IterationStats:
    """What one step of the engine did."""

    def __init__(self) -> None:
        self.num_generation_tokens = 0
        self.prompt_token_stats = PromptTokenStats()

    def update_from_events(
        self,
        req_id: str,
        events: list[EngineCoreEvent],
        is_prefilling: bool,
        req_stats: RequestStateStats,
        lora_states: Any,
        lora_name: str | None,
    ) -> None:
        """Write events down in the statistics of their sequence."""
        for event in events:
            if event.type == EngineCoreEventType.QUEUED:
                req_stats.queued_ts = event.timestamp
            elif event.type == EngineCoreEventType.SCHEDULED:
                req_stats.scheduled_ts = req_stats.scheduled_ts or event.timestamp
            elif event.type == EngineCoreEventType.PREEMPTED:
                req_stats.num_preemptions += 1


@dataclass
class SchedulerStats:
    """The scheduler after a step."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0


class StatLoggerManager:
    """Is told of every step."""

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int | None = None,
    ) -> None:
        """Tell the loggers; here are none."""


@dataclass
class Sequence:
    """A sequence in the engine: its statistics, and events that the front end has yet to hear."""

    stats: RequestStateStats
    clock: ManualClock
    skew: float = 0.0
    events: list[EngineCoreEvent] = field(default_factory=list)

    def now(self) -> float:
        """The engine's monotonic clock, seconds."""
        return self.clock.monotonic_ns() / 1e9 + self.skew

    def note(self, kind: EngineCoreEventType) -> None:
        """Something happens; it is told with the next output."""
        self.events.append(EngineCoreEvent(kind, self.now()))

    def output(self, step: IterationStats, tokens: int) -> None:
        """An output comes; a pooling request's has no *tokens*."""
        stats, prefilling = self.stats, not self.stats.first_token_ts
        if self.events:
            step.update_from_events("r", self.events, prefilling, stats, None, None)
            self.events = []
        step.num_generation_tokens += tokens
        stats.num_generation_tokens += tokens
        stats.first_token_ts = stats.first_token_ts or self.now()
        stats.last_token_ts = self.now()


def admit(
    processor: OutputProcessor, name: str, params: Any, *, external_ids: bool
) -> list[RequestStateStats | None]:
    """Hand a request to the engine: one sequence for each answer, as both engines of vLLM do.

    Since 0.14 (*external_ids*) a request has a name of the engine's own beside its caller's.
    """
    request = EngineCoreRequest(name)
    pooling = not hasattr(params, "n")
    setattr(request, "pooling_params" if pooling else "sampling_params", params)
    if external_ids:
        request.external_req_id, request.request_id = name, f"{name}-0a1b2c3d"
    if pooling or params.n == 1:
        processor.add_request(request, "hi", None, 0)
        return _statistics(processor, [request])
    parent = ParentRequest(request.request_id, params)
    children = [
        replace(
            request,
            request_id=f"{index}_{request.request_id}",
            sampling_params=replace(params, n=1),
        )
        for index in range(params.n)
    ]
    for index, child in enumerate(children):
        processor.add_request(child, "hi", parent, index)
    return _statistics(processor, children)


def _statistics(
    processor: OutputProcessor, requests: Iterable[EngineCoreRequest]
) -> list[RequestStateStats | None]:
    return [processor.request_states[each.request_id].stats for each in requests]


def configuration(**changes: Any) -> SimpleNamespace:
    """A `VllmConfig` with what the adapter reads of it; *changes* replace whole parts."""
    parts = {
        "parallel_config": SimpleNamespace(
            tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1
        ),
        "model_config": SimpleNamespace(
            model="org/tiny",
            served_model_name="tiny",
            quantization=None,
            dtype="torch.bfloat16",
            max_model_len=4096,
        ),
        "scheduler_config": SimpleNamespace(max_num_seqs=128, max_num_batched_tokens=8192),
        "attention_config": SimpleNamespace(backend=None),
        "cache_config": SimpleNamespace(
            cache_dtype="auto", block_size=16, enable_prefix_caching=True
        ),
        "speculative_config": None,
        "kv_transfer_config": None,
        "observability_config": SimpleNamespace(otlp_traces_endpoint=None),
        "compute_hash": lambda: "0123456789",
    }
    return SimpleNamespace(**parts | changes)
