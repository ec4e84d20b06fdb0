"""Who is computed in the next step: continuous batching as the V1 scheduler of vLLM does it.

Running sequences come first, in the order they were admitted, then waiting ones, all out of one
budget of tokens; a prompt takes as many steps as the budget makes of it. A running sequence for
whose growth there is no block pushes another one out: the last admitted, or the one of least
priority. It loses its blocks, waits again where it belongs in the queue, and is computed anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from otel_llm.simulator.blocks import ROOT_HASH, BlockPool, block_hash
from otel_llm.simulator.interface import EngineConfig, EngineRequest
from otel_llm.simulator.truth import RequestTruth


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the engine."""

    request: EngineRequest
    ordinal: int
    order: tuple[int, int]
    """Its place in the queue."""
    target: int
    """Tokens it will generate."""
    truth: RequestTruth
    generated: int = 0
    computed: int = 0
    """Tokens whose keys and values are in its blocks."""
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    """Its first blocks, which the prefix cache knows."""
    hashes: list[int] = field(default_factory=list)
    running: bool = False
    ended: bool = False
    left_ns: int | None = None
    """Since when it is preempted."""
    again_ns: int | None = None
    """Since when it is computed anew after that."""
    lost_tokens: int = 0
    """Prompt tokens that a flush of the prefix cache makes it compute."""

    @property
    def total(self) -> int:
        """Tokens known so far."""
        return len(self.request.prompt) + self.generated

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Their ids; a generated one is unlike that of any other request."""
        known = tuple(self.request.prompt[start:end])
        return known + (-1 - self.ordinal,) * (end - start - len(known))

    def hashed(self, blocks: int, size: int) -> list[int]:
        """The hashes of its first *blocks* blocks."""
        for index in range(len(self.hashes), blocks):
            before = self.hashes[-1] if self.hashes else ROOT_HASH
            self.hashes.append(block_hash(before, self.tokens(index * size, (index + 1) * size)))
        return self.hashes[:blocks]

    def back(self, now_ns: int) -> None:
        """If it was preempted, that is over."""
        if self.left_ns is not None:
            self.truth.preemptions.append((self.left_ns, now_ns))
            self.truth.blame("preempted", self.left_ns, now_ns)
            self.left_ns = None

    def recomputed(self, now_ns: int) -> None:
        """If it was being computed anew, that is over."""
        if self.again_ns is not None:
            self.truth.blame("recomputation", self.again_ns, now_ns)
            self.again_ns = None

    def warmed(self, now_ns: int) -> None:
        """If it was computing what a flush lost, that is over."""
        if self.lost_tokens and self.truth.scheduled_ns is not None:
            detail = f"{self.lost_tokens} tokens"
            self.truth.blame("cold_cache", self.truth.scheduled_ns, now_ns, detail)
            self.lost_tokens = 0


@dataclass(slots=True, eq=False)
class Share:
    """One sequence's part of a step."""

    sequence: Sequence
    tokens: int
    start: int
    """Tokens it had computed before."""
    prefill: bool


@dataclass(slots=True)
class Plan:
    """What one step computes, and what became of the others."""

    budget: int
    shares: list[Share] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    held_by: str | None = None
    """Why the first of the waiting sequences stays there: the kind of a `Cause`."""

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out of the step again."""
        for share in self.shares:
            if share.sequence is sequence:
                self.budget += share.tokens
                self.shares.remove(share)
                return


class Scheduler:
    """The queue, the batch and the blocks of an engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        """In the order in which they will be admitted."""
        self.prefix_queries = 0
        """Tokens looked up in the prefix cache on admission."""
        self.prefix_hits = 0
        """Tokens it gave."""

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, at its place."""
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended."""
        if sequence.running:
            self.running.remove(sequence)
        else:
            del self.waiting[bisect_left(self.waiting, sequence.order, key=_order)]
        self._release(sequence)

    def schedule(self) -> Plan:
        """Plan one step; empty only if no sequence is here."""
        plan = self._planned()
        while not plan.shares and (self.running or self.waiting):
            before, plan = plan, self._planned()  # one that had to go itself stopped the others
            plan.preempted[:0] = before.preempted
        return plan

    def _planned(self) -> Plan:
        plan = Plan(self.config.max_num_batched_tokens)
        self._continue_running(plan)
        if plan.preempted:
            plan.held_by = "waited_for_kv_cache"
        else:
            self._admit_waiting(plan)
        return plan

    def _continue_running(self, plan: Plan) -> None:
        for sequence in tuple(self.running):
            if not plan.budget:
                break
            if not sequence.running:
                continue
            left = sequence.total - sequence.computed
            tokens = min(left + self._drafts(sequence, left), plan.budget)
            if not self._make_room(sequence, tokens, plan):
                break
            self._schedule(sequence, tokens, plan)

    def _drafts(self, sequence: Sequence, left: int) -> int:
        """Draft tokens to verify: none in a prompt, none beyond what will be generated."""
        if left > 1 or not sequence.generated:
            return 0
        return min(self.config.speculative_tokens, sequence.target - sequence.generated - 1)

    def _make_room(self, sequence: Sequence, tokens: int, plan: Plan) -> bool:
        """Take blocks for more tokens, pushing others out; False if it had to go itself."""
        while not self._grow(sequence, tokens):
            victim = max(self.running, key=_order)
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        plan.drop(victim)
        for block in victim.blocks[victim.computed // self.config.block_size :]:
            self.pool.forget(block)  # to be computed in this step, which it has been taken out of
        self.running.remove(victim)
        self._release(victim)
        self.add(victim)
        plan.preempted.append(victim)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.running = False
        sequence.computed = sequence.published = 0

    def _admit_waiting(self, plan: Plan) -> None:
        while self.waiting:
            if len(self.running) >= self.config.max_num_seqs:
                plan.held_by = "waited_for_slots"
                return
            sequence = self.waiting[0]
            cached = self._cached(sequence)
            new = sequence.total - len(cached) * self.config.block_size
            if not plan.budget or (new > plan.budget and not self.config.chunked_prefill):
                plan.held_by = "waited_for_budget"
                return
            tokens = min(new, plan.budget)
            if not (self._fits(sequence, cached) and self._grow(sequence, tokens, cached)):
                plan.held_by = "waited_for_kv_cache"
                return
            self._admit(sequence, len(cached))
            self._schedule(sequence, tokens, plan)
            plan.admitted.append(sequence)

    def _fits(self, sequence: Sequence, cached: Tokens[int]) -> bool:
        """Whether there are blocks for all of its tokens, if that is asked for."""
        if not self.config.scheduler_reserve_full_isl:
            return True
        missing = -(-sequence.total // self.config.block_size) - len(cached)
        return self.pool.room_for(missing, cached)

    def _cached(self, sequence: Sequence) -> list[int]:
        """Blocks the prefix cache has of it; the last token is always computed."""
        if not self.config.prefix_caching:
            return []
        size = self.config.block_size
        return self.pool.lookup(sequence.hashed((sequence.total - 1) // size, size))

    def _admit(self, sequence: Sequence, cached: int) -> None:
        size = self.config.block_size
        if self.config.prefix_caching:
            self.prefix_queries += sequence.total
            self.prefix_hits += cached * size
            if sequence.truth.scheduled_ns is None:
                hashes = sequence.hashed((sequence.total - 1) // size, size)
                sequence.lost_tokens = self.pool.lost(hashes[cached:]) * size
        sequence.running = True
        del self.waiting[0]
        self.running.append(sequence)

    def _grow(self, sequence: Sequence, tokens: int, cached: Tokens[int] = ()) -> bool:
        """Take blocks for *tokens* more, on top of the *cached* ones; False if there are none."""
        size = self.config.block_size
        held = len(sequence.blocks) + len(cached)
        computed = sequence.computed + len(cached) * size
        missing = -(-(computed + tokens) // size) - held
        if missing > 0 or cached:
            if not self.pool.room_for(missing, cached):
                return False
            self.pool.share(cached)
            sequence.blocks += [*cached, *self.pool.take(missing)]
            sequence.computed = computed
            sequence.published += len(cached)
        return True

    def _schedule(self, sequence: Sequence, tokens: int, plan: Plan) -> None:
        prefill = not sequence.generated or sequence.total - sequence.computed > 1
        plan.shares.append(Share(sequence, tokens, sequence.computed, prefill))
        plan.budget -= tokens
        self._publish(sequence, tokens)

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        """Let others find the blocks this step will fill; drafts may be wrong and do not count."""
        size = self.config.block_size
        full = min(sequence.computed + tokens, sequence.total) // size
        if full > sequence.published and self.config.prefix_caching:
            hashes = sequence.hashed(full, size)
            for index in range(sequence.published, full):
                self.pool.publish(sequence.blocks[index], hashes[index])
            sequence.published = full


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
