"""Run by vLLM's own Python: random loads through vLLM's scheduler and the simulated one, in step.

python simulator_scheduler.py MODEL fcfs|priority SEEDS

Prints as JSON in which runs they differed, and what happened in all of them together.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from random import Random
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from otel_llm.simulator.engine import Engine, EngineConfig, EngineRequest, Step
from otel_llm.simulator.hardware import CostModel

TURNS = 60
"""Requests come before that many steps."""
MOST_STEPS = 3000


def main(model: str, policy: str, seeds: str) -> None:
    """Do every seed's run, and print what came of it."""
    init_none_hash(sha256)
    config = ModelConfig(model=model, dtype="float32", skip_tokenizer_init=True)
    differences, happened = {}, Counter[str]()
    for seed in range(int(seeds)):
        pair = Pair(config, Random(seed), policy)
        try:
            pair.play()
        except AssertionError as error:
            differences[seed] = f"{error}; {pair.settings}"
        happened += pair.happened()
    print(json.dumps({"differences": differences, "happened": happened}), flush=True)


def drawn(rng: Random, policy: Any) -> EngineConfig:
    """Settings of a small engine that runs out of everything."""
    size, blocks, budget = rng.choice([1, 2, 4]), rng.randrange(4, 40), rng.randrange(4, 40)
    return EngineConfig(
        num_blocks=blocks,
        block_size=size,
        cost=CostModel(overhead_s=0.01),
        max_num_seqs=min(rng.randrange(1, 8), budget),
        max_num_batched_tokens=budget,
        prefix_caching=rng.random() < 0.7,
        policy=policy,
        max_model_len=blocks * size,
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )


def real(config: EngineConfig, model: ModelConfig) -> Scheduler:
    """The scheduler of vLLM with the same settings. One of its blocks is never used."""
    model.max_model_len = config.longest
    scheduling = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.longest,
        is_encoder_decoder=False,
        policy=config.policy,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=config.block_size, enable_prefix_caching=config.prefix_caching)
    whole = VllmConfig(
        scheduler_config=scheduling,
        model_config=model,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    # Checking all of them together has changed some for the platform.
    cache.block_size, cache.num_gpu_blocks = config.block_size, config.num_blocks + 1
    scheduling.max_num_batched_tokens = config.max_num_batched_tokens
    scheduling.max_num_seqs = config.max_num_seqs
    layer = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=whole,
        kv_cache_config=KVCacheConfig(
            num_blocks=config.num_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
        ),
        block_size=config.block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(whole),
    )


class Pair:
    """Both schedulers, given the same."""

    def __init__(self, model: ModelConfig, rng: Random, policy: str) -> None:
        self.rng, self.settings = rng, drawn(rng, policy)
        self.theirs, self.ours = real(self.settings, model), Engine(self.settings)
        self.coming = Counter(rng.randrange(TURNS) for _ in range(rng.randrange(1, 25)))
        self.names: list[str] = []
        self.now_ns = 0
        self.token = 1_000_000
        """The last one generated; each is unlike any other."""

    def happened(self) -> Counter[str]:
        """What this run was good for."""
        stats = self.ours.stats
        return Counter(
            steps=stats.steps,
            preemptions=stats.preemptions,
            prefix_hits=stats.prefix_hits,
            **stats.ended,
        )

    def play(self) -> None:
        """Requests and steps until none is left. Raises AssertionError where they differ."""
        for turn in range(MOST_STEPS):
            for _ in range(self.coming.pop(turn, 0)):
                self.submit()
            if self.names and self.rng.random() < 0.05:
                self.abort(self.rng.choice(self.names))
            if not self.step(f"step {turn}") and not self.coming:
                return
        raise AssertionError("it does not come to an end")

    def submit(self) -> None:
        """One more request, one of three texts, now and then a long one."""
        rng, longest, size = self.rng, self.settings.longest, self.settings.block_size
        few = rng.random() > 0.3
        tokens = min(rng.randrange(1, min(12, longest - 1) + 1 if few else longest), longest - 1)
        start = 1000 * rng.randrange(3)
        asked = EngineRequest(
            id=f"r{len(self.names)}",
            prompt=range(start, start + tokens),
            max_tokens=rng.randrange(1, min(12, longest - tokens) + 1),
            priority=rng.randrange(3) if self.settings.policy == "priority" else 0,
        )
        self.names.append(asked.id)
        self.ours.submit(asked, self.now_ns)
        self.theirs.add_request(
            Request(
                request_id=asked.id,
                prompt_token_ids=list(asked.prompt),
                sampling_params=SamplingParams(ignore_eos=True, max_tokens=asked.max_tokens),
                pooling_params=None,
                arrival_time=float(len(self.names)),
                block_hasher=get_request_block_hasher(size, sha256),
                priority=asked.priority,
            )
        )

    def abort(self, name: str) -> None:
        """Give one up, if it lives."""
        if self.ours.truths[name].finished_ns is None:
            self.ours.abort(name, self.now_ns)
            self.theirs.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def step(self, where: str) -> bool:
        """One step of both, compared; False if there was nothing to do."""
        step = self.ours.begin_step(self.now_ns)
        planned = self.planned()
        shares = step.shares if step else ()
        mine = [(share.sequence.request.id, share.tokens) for share in shares]
        same(where, "tokens", mine, list(planned.num_scheduled_tokens.items()))
        self.end(step, planned)
        counts = (self.ours.stats.running, self.ours.stats.waiting)
        same(where, "running and waiting", counts, tuple(self.theirs.get_request_counts()))
        usage = round(self.ours.stats.kv_usage, 9)
        same(where, "KV cache", usage, round(self.theirs.kv_cache_manager.usage, 9))
        return step is not None

    def planned(self) -> Any:
        """The next step of vLLM; it takes one for nothing if the only sequence had to go itself."""
        planned = self.theirs.schedule()
        while not planned.num_scheduled_tokens and self.theirs.running:
            self.theirs.update_from_output(planned, computed([], []))
            planned = self.theirs.schedule()
        return planned

    def end(self, step: Step | None, planned: Any) -> None:
        """Both steps are over: a token for each sequence whose prompt is."""
        names = list(planned.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.theirs.requests[name]
            self.token += 1
            whole = request.num_computed_tokens >= request.num_tokens
            sampled.append([self.token] if whole else [])
        self.theirs.update_from_output(planned, computed(names, sampled))
        if step:
            self.now_ns = step.started_ns + step.duration_ns
            self.ours.end_step(step, self.now_ns)


def computed(names: list[str], sampled: list[list[int]]) -> ModelRunnerOutput:
    """What vLLM's model runner would give."""
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def same(where: str, what: str, ours: Any, theirs: Any) -> None:
    """Raises AssertionError unless both are equal."""
    if ours != theirs:
        raise AssertionError(f"{where}, {what}: {ours} is not vLLM's {theirs}")


if __name__ == "__main__":
    main(*sys.argv[1:])
