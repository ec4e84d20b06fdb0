"""What goes into an engine and what comes out: settings, requests, outputs, counters, errors."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any, Literal

from otel_llm.simulator.hardware import CostModel, Hardware, Model, num_blocks


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine is started with, in vLLM's words. Raises ValueError if it cannot start."""

    num_blocks: int
    cost: CostModel
    block_size: int = 16
    """Tokens."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_queued: int | None = None
    """Waiting requests before one more is refused; None is no limit."""
    chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    """A prompt is begun only when the KV cache has room for all of it, and not for a chunk only."""
    prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    """Priority: the lower number first, then the earlier."""
    speculative_tokens: int = 0
    """Drafted per sequence and step; what drafting costs is part of the cost model's overhead."""
    acceptance_rate: float = 0.7
    """Probability that a drafted token is accepted, if all before it were."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None is as many as the KV cache holds."""

    def __post_init__(self) -> None:
        least = (self.num_blocks, self.block_size, self.max_num_seqs, self.max_num_batched_tokens)
        if min(least) < 1 or self.speculative_tokens < 0:
            raise ValueError("blocks, their size, sequences and batched tokens are at least 1")
        if self.max_queued is not None and self.max_queued < 1:
            raise ValueError("max_queued is at least 1: every request waits for its first step")
        if self.longest > self.num_blocks * self.block_size:
            raise ValueError(
                f"{self.num_blocks} blocks do not hold one request of {self.longest} tokens; "
                "lower max_model_len or give more blocks"
            )
        if not self.chunked_prefill and self.longest > self.max_num_batched_tokens:
            raise ValueError(
                f"without chunked prefill one step has to hold a prompt of {self.longest} tokens; "
                "raise max_num_batched_tokens or lower max_model_len"
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        if self.max_model_len is None:
            return self.num_blocks * self.block_size
        return self.max_model_len

    @classmethod
    def of(
        cls, hardware: Hardware, model: Model, *, count: int = 1, **settings: Any
    ) -> EngineConfig:
        """The engine for a model on *count* of that hardware; *settings* are fields of this class.

        Raises ValueError if the model does not fit.
        """
        size = settings.get("block_size", 16)
        blocks = num_blocks(hardware, model, block_size=size, count=count)
        ready: dict[str, Any] = {
            "num_blocks": blocks,
            "cost": CostModel.of(hardware, model, count=count),
            "max_model_len": min(model.max_model_len, blocks * size),
        }
        return cls(**ready | settings)


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What the engine is asked for. Raises ValueError if prompt or answer have no tokens."""

    id: str
    prompt: Tokens[int]
    """Token ids; equal beginnings share the prefix cache."""
    max_tokens: int
    priority: int = 0
    """The lower, the earlier; only under the priority policy."""
    stops_at: int | None = None
    """Tokens after which the model stops by itself; None, or more than `max_tokens`: never."""

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise ValueError("a prompt has at least one token")
        if self.max_tokens < 1 or (self.stops_at is not None and self.stops_at < 1):
            raise ValueError("an answer has at least one token")


class QueueFull(RuntimeError):  # noqa: N818
    """As many requests wait as may."""


class PromptTooLong(ValueError):  # noqa: N818
    """The prompt leaves no room for an answer within `max_model_len`."""


class DuplicateRequest(ValueError):  # noqa: N818
    """A request of that id was here before."""


class WrongStep(RuntimeError):  # noqa: N818
    """A step was begun before the last one ended, or ended that is not running."""


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens of one request from one step."""

    request_id: str
    tokens: int
    """More than 1 only with speculation."""
    finished: str | None = None
    """`stop` or `length` on the last; who aborts a request gets nothing more of it."""


@dataclass(slots=True)
class Stats:
    """What the engine tells on its metrics page: gauges as they stand, counters since the start."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Blocks in use, 0 to 1."""
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Tokens found there."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """Of requests that have their first token."""
    generation_tokens: int = 0
    draft_tokens: int = 0
    """Tokens drafted."""
    accepted_tokens: int = 0
    """Drafted tokens that were right."""
    steps: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    """Requests by finish reason."""
