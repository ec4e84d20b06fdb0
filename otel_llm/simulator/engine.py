"""The engine: requests in, steps out, tokens at their ends. It reads no clock and never sleeps.

Who drives it says what time it is: `begin_step` tells what the next step costs, and `end_step` that
it is over, in virtual time at once and in real time a little later than planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from otel_llm.simulator.conditions import NO_TROUBLE, Conditions, StepTrouble
from otel_llm.simulator.hardware import attended
from otel_llm.simulator.interface import (
    DuplicateRequest,
    EngineConfig,
    EngineRequest,
    Output,
    PromptTooLong,
    QueueFull,
    Stats,
    WrongStep,
)
from otel_llm.simulator.scheduler import Plan, Scheduler, Sequence, Share
from otel_llm.simulator.truth import Delays, Hold, RequestTruth

__all__ = [
    "DuplicateRequest",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "Output",
    "PromptTooLong",
    "QueueFull",
    "Stats",
    "Step",
    "WrongStep",
]

MOST_DELAYS = 4096
"""Causes kept for requests still here before those nobody needs are looked for."""
LOADING = Hold("model_load")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of the engine, from `begin_step` to `end_step`."""

    number: int
    started_ns: int
    duration_ns: int
    """What it costs, more than 0."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    """Drafts included."""
    loading: bool = False
    """It only waits for a model to be loaded."""
    shares: tuple[Share, ...] = ()
    trouble: StepTrouble = NO_TROUBLE
    long_prompt: Hold | None = None
    """The prompt that is half of the step or more."""


class Engine:
    """A pure engine of one replica. Not thread safe; an instant before the last counts as that."""

    def __init__(
        self, config: EngineConfig, *, seed: int = 0, conditions: Conditions | None = None
    ) -> None:
        self.config = config
        self.conditions = conditions or Conditions()
        self.truths: dict[str, RequestTruth] = {}
        """Of all requests; who drives it for long may take out those that ended."""
        self._scheduler = Scheduler(config)
        self._live: dict[str, Sequence] = {}
        self._random = Random(seed)  # noqa: S311 - a simulation
        self._delays = Delays()
        self._counted = Stats()
        self._step: Step | None = None
        self._now_ns = self._flushes = 0
        self._most_delays = MOST_DELAYS
        self._submitted = 0

    @property
    def stats(self) -> Stats:
        """A copy of the counters and gauges as they stand."""
        return replace(
            self._counted,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_usage=self._scheduler.pool.usage,
            prefix_queries=self._scheduler.prefix_queries,
            prefix_hits=self._scheduler.prefix_hits,
            ended=dict(self._counted.ended),
        )

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        """Queue a request.

        Raises QueueFull or PromptTooLong when it is rejected, which its truth tells, too, and
        DuplicateRequest if there was one of that id.
        """
        if request.id in self.truths or request.id in self._live:
            raise DuplicateRequest(f"a request {request.id!r} was here before; give another id")
        prompt = len(request.prompt)
        truth = RequestTruth(request.id, prompt, self._at(now_ns))
        self.truths[request.id] = truth
        if prompt >= self.config.longest:
            self._reject(truth, "prompt_too_long")
            raise PromptTooLong(f"{prompt} tokens, and the engine takes {self.config.longest - 1}")
        limit = self.config.max_queued
        if limit is not None and len(self._scheduler.waiting) >= limit:
            self._reject(truth, "queue_full")
            raise QueueFull(f"{limit} requests wait already")
        sequence = self._sequence(request, truth)
        self._live[request.id] = sequence
        self._scheduler.add(sequence)

    def _sequence(self, request: EngineRequest, truth: RequestTruth) -> Sequence:
        self._submitted += 1
        priority = request.priority if self.config.policy == "priority" else 0
        target = min(request.max_tokens, self.config.longest - len(request.prompt))
        if request.stops_at is not None:
            target = min(target, request.stops_at)
        return Sequence(request, self._submitted, (priority, self._submitted), target, truth)

    def _reject(self, truth: RequestTruth, kind: str) -> None:
        truth.finished_ns = truth.queued_ns
        truth.blame(kind, truth.queued_ns, truth.queued_ns)
        self._count_end(truth, "rejected")

    def abort(self, request_id: str, now_ns: int) -> None:
        """End a request, at once; an unknown or finished one is left alone."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._note_step(self._at(now_ns))
            self._end(sequence, "abort")

    def begin_step(self, now_ns: int) -> Step | None:
        """Schedule the next step; None when no request is here. Raises WrongStep inside a step."""
        if self._step is not None:
            raise WrongStep("the last step has not ended")
        now_ns = self._at(now_ns)
        self._flush(self.conditions.flushes(now_ns))
        if not self._live:
            self._delays.hold(now_ns, Hold())
            self._delays.forget(now_ns)
            return None
        self._counted.steps += 1
        loaded_ns = self.conditions.loading_until(now_ns)
        if loaded_ns is None:
            self._step = self._computing(now_ns)
        else:
            self._delays.hold(now_ns, LOADING)
            self._step = Step(self._counted.steps, now_ns, loaded_ns - now_ns, loading=True)
        return self._step

    def _computing(self, now_ns: int) -> Step:
        self._limit_blocks(now_ns)
        plan = self._scheduler.schedule()
        for sequence in plan.preempted:
            self._preempted(sequence)
        for sequence in plan.admitted:
            self._admitted(sequence)
        long_prompt = self._long_prompt(plan)
        hold = Hold(plan.held_by or "waited_for_step")
        if long_prompt and hold.kind in {"waited_for_step", "waited_for_budget"}:
            hold = long_prompt
        self._delays.hold(now_ns, hold)
        return self._priced(plan, long_prompt)

    def _flush(self, flushes: int) -> None:
        if flushes > self._flushes:
            self._scheduler.pool.flush()
        self._flushes = flushes

    def _limit_blocks(self, now_ns: int) -> None:
        """Leave out blocks that faults took, but never some that the longest request needs."""
        total, size = self.config.num_blocks, self.config.block_size
        taken = self.conditions.blocks_taken(now_ns, total)
        needed = 0
        if taken:
            longest = max(len(s.request.prompt) + s.target for s in self._live.values())
            needed = -(-longest // size)
        self._scheduler.pool.capacity = total - taken
        self._scheduler.pool.limit = max(total - taken, needed)

    def _preempted(self, sequence: Sequence) -> None:
        self._counted.preemptions += 1
        sequence.left_ns = self._now_ns
        sequence.recomputed(self._now_ns)

    def _admitted(self, sequence: Sequence) -> None:
        truth = sequence.truth
        if truth.scheduled_ns is None:
            self._delays.waited(truth, self._now_ns)
            truth.scheduled_ns = self._now_ns
            truth.cached_tokens = sequence.computed
        else:
            sequence.back(self._now_ns)
            sequence.again_ns = self._now_ns

    def _long_prompt(self, plan: Plan) -> Hold | None:
        """The prompt that takes half of a step's tokens or more, if one does."""
        prompts = [share for share in plan.shares if share.prefill]
        most = max(prompts, key=lambda share: share.tokens, default=None)
        if most is None or 2 * most.tokens < self.config.max_num_batched_tokens:
            return None
        request = most.sequence.request
        return Hold("behind_long_prompt", f"{len(request.prompt)} tokens", request.id)

    def _priced(self, plan: Plan, long_prompt: Hold | None) -> Step:
        prefill = context = decode = kv_tokens = 0
        for share in plan.shares:
            kv_tokens += share.start + share.tokens
            if not share.prefill:
                decode += share.tokens
                continue
            prefill += share.tokens
            context += attended(share.start, share.tokens)
            truth = share.sequence.truth
            truth.prefill_chunks += truth.first_token_ns is None
        trouble = self.conditions.of_step(self._now_ns, self._random)
        seconds = trouble.extra_s + trouble.factor * self.config.cost.step_seconds(
            prefill_tokens=prefill,
            prefill_context=context,
            decode_sequences=decode,
            kv_tokens=kv_tokens,
        )
        return Step(
            number=self._counted.steps,
            started_ns=self._now_ns,
            duration_ns=max(1, round(seconds * 1e9)),
            prefill_tokens=prefill,
            decode_tokens=decode,
            shares=tuple(plan.shares),
            trouble=trouble,
            long_prompt=long_prompt,
        )

    def end_step(self, step: Step, now_ns: int) -> list[Output]:
        """The step is over: what it brought, in the order of the batch.

        Raises WrongStep unless it is the one that runs.
        """
        if step is not self._step:
            raise WrongStep("only the step that was begun last can end, and once")
        self._note_step(self._at(now_ns))
        self._step = None
        alive = (share for share in step.shares if not share.sequence.ended)
        outputs = [output for share in alive if (output := self._sample(share))]
        if not self._scheduler.waiting:
            self._delays.hold(self._now_ns, Hold())
        return outputs

    def _note_step(self, now_ns: int) -> None:
        """Write down what was wrong with the running step so far."""
        step = self._step
        if step is None:
            return
        self._delays.step(step.trouble.troubles, step.started_ns, now_ns)
        behind = LOADING if step.loading else step.long_prompt
        if behind:
            self._delays.behind(behind, step.started_ns, now_ns)

    def _sample(self, share: Share) -> Output | None:
        """The tokens a sequence gets from a step; None from a chunk before a prompt's last."""
        sequence = share.sequence
        sequence.computed = share.start + share.tokens
        if sequence.computed < sequence.total:
            return None
        accepted = 0 if share.prefill else self._accepted(share.tokens - 1)
        sequence.computed = sequence.total + accepted
        sequence.generated += 1 + accepted
        self._counted.generation_tokens += 1 + accepted
        self._stamp(sequence, 1 + accepted)
        done = sequence.generated >= sequence.target
        reason = _reason(sequence) if done else None
        if reason:
            self._end(sequence, reason)
        return Output(sequence.request.id, 1 + accepted, reason)

    def _accepted(self, drafts: int) -> int:
        """How many drafts are right before the first wrong one."""
        if not drafts:
            return 0
        rate = self.conditions.acceptance(self._now_ns, self.config.acceptance_rate)
        accepted = 0
        while accepted < drafts and self._random.random() < rate:
            accepted += 1
        self._counted.draft_tokens += drafts
        self._counted.accepted_tokens += accepted
        return accepted

    def _stamp(self, sequence: Sequence, tokens: int) -> None:
        truth = sequence.truth
        if truth.first_token_ns is None:
            truth.first_token_ns = self._now_ns
            self._counted.prompt_tokens += truth.prompt_tokens
            sequence.warmed(self._now_ns)
        truth.last_token_ns = self._now_ns
        truth.output_ns.append((self._now_ns, tokens))
        sequence.recomputed(self._now_ns)

    def _end(self, sequence: Sequence, reason: str) -> None:
        truth = sequence.truth
        truth.finished_ns = self._now_ns
        if truth.scheduled_ns is None:
            self._delays.waited(truth, self._now_ns)
        sequence.back(self._now_ns)
        sequence.recomputed(self._now_ns)
        sequence.warmed(self._now_ns)
        self._delays.ended(truth, self._now_ns)
        sequence.ended = True
        self._scheduler.remove(sequence)
        del self._live[truth.request_id]
        self._count_end(truth, reason)
        if self._delays.size > self._most_delays:
            self._delays.forget(min((s.truth.queued_ns for s in self._live.values()), default=0))
            self._most_delays = max(MOST_DELAYS, 2 * self._delays.size)

    def _count_end(self, truth: RequestTruth, reason: str) -> None:
        truth.finish_reason = reason
        self._counted.ended[reason] = self._counted.ended.get(reason, 0) + 1

    def _at(self, now_ns: int) -> int:
        """Now, which never goes back."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns


def _reason(sequence: Sequence) -> str:
    return "stop" if sequence.generated == sequence.request.stops_at else "length"
