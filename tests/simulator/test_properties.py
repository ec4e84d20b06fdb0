"""What holds for every engine, whatever is asked of it, in whatever order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otel_llm.simulator.blocks import BlockPool
from otel_llm.simulator.conditions import Conditions
from otel_llm.simulator.engine import (
    Engine,
    EngineConfig,
    EngineRequest,
    PromptTooLong,
    QueueFull,
    Step,
)
from otel_llm.simulator.hardware import CostModel
from otel_llm.simulator.scheduler import Sequence
from otel_llm.simulator.truth import RequestTruth

COST = CostModel(overhead_s=1e-6, token_s=1e-7, kv_token_s=1e-8)
HORIZON_NS = 60_000
"""About sixty steps."""
MOST_STEPS = 20_000


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Small engines that run out of everything."""
    size, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    budget = draw(st.integers(1, 20))
    return EngineConfig(
        num_blocks=blocks,
        block_size=size,
        cost=COST,
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=budget,
        max_queued=draw(st.none() | st.integers(1, 6)),
        chunked_prefill=size * blocks > budget or draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        speculative_tokens=draw(st.integers(0, 3)),
        max_model_len=draw(st.none() | st.integers(1, size * blocks)),
    )


@st.composite
def conditions(draw: st.DrawFn) -> Conditions:
    """Up to two faults of each kind."""
    found = Conditions()
    instants = st.integers(0, HORIZON_NS)
    spells = st.lists(st.tuples(instants, instants), max_size=2)
    for spell in draw(spells):
        found.slow(draw(st.sampled_from([0.5, 3])), *spell)
    for spell in draw(spells):
        found.disturb(2e-6, 0.5, *spell)
    for spell in draw(spells):
        found.take_blocks(draw(st.floats(0, 1)), *spell)
    for spell in draw(spells):
        found.accept(draw(st.floats(0, 1)), *spell)
    for spell in draw(spells):
        found.load(*spell)
    for at_ns in draw(st.lists(instants, max_size=2)):
        found.flush_cache(at_ns)
    return found


texts = st.integers(0, 1)
submits = st.tuples(
    st.just("submit"),
    st.tuples(
        texts, st.integers(1, 40), st.integers(1, 12), st.none() | st.integers(1, 12),
        st.integers(0, 2),
    ),
)  # fmt: skip
aborts = st.tuples(st.just("abort"), st.integers(0, 10))
steps = st.tuples(st.just("turn"), st.integers(0, 3000))
scripts = st.lists(st.one_of(submits, submits, aborts, steps, steps), max_size=40)


class Checked:
    """An engine, driven by a script, looked at after every turn."""

    def __init__(self, config: EngineConfig, seed: int, conditions: Conditions) -> None:
        self.engine = Engine(config, seed=seed, conditions=conditions)
        self.config = config
        self.now_ns = 0
        self.asked: list[EngineRequest] = []
        self.step: Step | None = None
        self.contents: dict[int, int] = {}
        """What was really computed into each block, by its hash."""
        self.writing: list[tuple[Sequence, list[int], int, int]] = []

    @property
    def pool(self) -> BlockPool:
        return self.engine._scheduler.pool

    def play(self, script: list[tuple[str, Any]]) -> None:
        """Every turn of the script, and then steps until nothing is left."""
        for what, argument in script:
            getattr(self, what)(argument)
            self.look()
        for _ in range(MOST_STEPS):
            self.turn(0)
            if self.step is None and not self.engine._live:
                return
        raise AssertionError("it does not come to an end")

    def submit(self, wish: tuple[int, int, int, int | None, int]) -> None:
        text, prompt, answer, stops_at, priority = wish
        tokens = [1000 * text + n for n in range(prompt)]
        name = f"r{len(self.asked)}"
        asked = EngineRequest(
            id=name, prompt=tokens, max_tokens=answer, stops_at=stops_at, priority=priority
        )
        self.asked.append(asked)
        try:
            self.engine.submit(asked, self.now_ns)
        except (QueueFull, PromptTooLong):
            assert self.engine.truths[name].finish_reason == "rejected"

    def abort(self, number: int) -> None:
        self.engine.abort(f"r{number}", self.now_ns)

    def turn(self, late_ns: int) -> None:
        """Begin a step, or end the one that runs."""
        if self.step is None:
            self.begin()
        else:
            self.now_ns = max(self.now_ns, self.step.started_ns + self.step.duration_ns) + late_ns
            self.end(self.step)

    def begin(self) -> None:
        step = self.step = self.engine.begin_step(self.now_ns)
        if step is None:
            assert not self.engine._live
            return
        assert step.duration_ns > 0
        assert step.loading != bool(step.shares)
        assert sum(share.tokens for share in step.shares) <= self.config.max_num_batched_tokens
        assert len(self.engine._scheduler.running) <= self.config.max_num_seqs
        self.writing = [
            (each.sequence, list(each.sequence.blocks), each.start, each.start + each.tokens)
            for each in step.shares
        ]

    def end(self, step: Step) -> None:
        aborted = {id(share.sequence) for share in step.shares if share.sequence.ended}
        outputs = self.engine.end_step(step, self.now_ns)
        self.step = None
        size = self.config.block_size
        for sequence, blocks, start, end in self.writing:
            known = sequence.total - (id(sequence) not in aborted)  # the newest is not computed
            for index in range(start // size, min(end, known) // size):
                self.contents[blocks[index]] = sequence.hashed(index + 1, size)[index]
        assert len({output.request_id for output in outputs}) == len(outputs)

    def look(self) -> None:
        """Blocks are held by those who say so, and keep what is believed to be in them."""
        sequences = list(self.engine._live.values())
        holders = Counter(block for each in sequences for block in each.blocks)
        assert self.pool._holders == [holders[n] for n in range(self.config.num_blocks)]
        assert set(self.pool._free) == set(range(self.config.num_blocks)) - set(holders)
        found = {block: key for key, blocks in self.pool._found.items() for block in blocks}
        assert found == {n: key for n, key in enumerate(self.pool._hashes) if key is not None}
        if self.step is None and self.config.prefix_caching:
            for each in sequences:
                full = each.computed // self.config.block_size
                expected = each.hashed(full, self.config.block_size)
                assert [self.contents[block] for block in each.blocks[:full]] == expected


def played(config: EngineConfig, script: list, seed: int, conditions: Conditions) -> Checked:
    """An engine that has played its script to the end."""
    checked = Checked(config, seed, conditions)
    checked.play(script)
    return checked


@given(configs(), scripts, st.integers(0, 3), conditions())
def test_every_request_ends_once_and_nothing_is_left(
    config: EngineConfig, script: list, seed: int, conditions: Conditions
) -> None:
    """Finished, aborted or rejected; no block is in use, and the counters agree."""
    checked = played(config, script, seed, conditions)
    engine = checked.engine
    reasons = Counter(truth.finish_reason for truth in engine.truths.values())
    assert set(engine.truths) == {asked.id for asked in checked.asked}
    assert set(reasons) <= {"stop", "length", "abort", "rejected"}
    assert engine.stats.ended == reasons
    assert (engine.stats.running, engine.stats.waiting, engine.stats.kv_usage) == (0, 0, 0)
    assert engine.stats.generation_tokens == sum(
        truth.output_tokens for truth in engine.truths.values()
    )
    assert engine.stats.prefix_hits <= engine.stats.prefix_queries


@given(configs(), scripts, st.integers(0, 3), conditions())
def test_a_request_gets_the_tokens_it_asked_for(
    config: EngineConfig, script: list, seed: int, conditions: Conditions
) -> None:
    """Unless it was aborted; never more, and with the right reason."""
    checked = played(config, script, seed, conditions)
    for asked in checked.asked:
        truth = checked.engine.truths[asked.id]
        room = min(asked.max_tokens, config.longest - len(asked.prompt))
        stops_at = asked.stops_at or room + 1
        if truth.finish_reason in {"stop", "length"}:
            assert truth.output_tokens == min(room, stops_at)
            assert truth.finish_reason == ("stop" if stops_at <= room else "length")
        else:
            assert truth.output_tokens < max(1, min(room, stops_at))


@given(configs(), scripts, st.integers(0, 3), conditions())
def test_instants_follow_each_other(
    config: EngineConfig, script: list, seed: int, conditions: Conditions
) -> None:
    """Queued, scheduled, tokens, end; causes and preemptions lie inside, and cover the wait."""
    for truth in played(config, script, seed, conditions).engine.truths.values():
        assert in_order(truth)
        assert truth.finished_ns is not None
        for begin, end in truth.preemptions:
            assert (truth.scheduled_ns or 0) <= begin <= end <= truth.finished_ns
        assert all(
            truth.queued_ns <= cause.from_ns <= cause.until_ns <= truth.finished_ns
            for cause in truth.causes
        )
        assert covered(truth) == wait_until_ns(truth) - truth.queued_ns


def in_order(truth: RequestTruth) -> bool:
    """Whether no instant lies before the one that comes before it."""
    known = [truth.queued_ns, truth.scheduled_ns, truth.first_token_ns]
    known += [at_ns for at_ns, _ in truth.output_ns] + [truth.last_token_ns, truth.finished_ns]
    times = [at_ns for at_ns in known if at_ns is not None]
    return times == sorted(times)


def wait_until_ns(truth: RequestTruth) -> int:
    """When its first step began, or it left without one."""
    until_ns = truth.finished_ns if truth.scheduled_ns is None else truth.scheduled_ns
    assert until_ns is not None
    return until_ns


def covered(truth: RequestTruth) -> int:
    """How much of the wait for the first step its causes explain, each nanosecond once."""
    until_ns = wait_until_ns(truth)
    waits = [
        cause
        for cause in truth.causes
        if cause.kind.startswith(("waited_", "behind_", "model_load")) and cause.from_ns < until_ns
    ]
    assert all(before.until_ns == after.from_ns for before, after in pairwise(waits))
    return sum(cause.duration_ns for cause in waits)


@given(configs(), scripts, st.integers(0, 3), conditions())
def test_the_same_seed_gives_the_same_truth(
    config: EngineConfig, script: list, seed: int, conditions: Conditions
) -> None:
    """Every instant of it, and every cause."""
    one, other = (played(config, script, seed, conditions).engine for _ in range(2))
    assert one.truths == other.truths
    assert one.stats == other.stats


@given(configs(), scripts, st.integers(0, 3), conditions())
def test_first_come_is_first_served(
    config: EngineConfig, script: list, seed: int, conditions: Conditions
) -> None:
    """Without priorities nobody is overtaken on the way to the first step."""
    if config.policy == "fcfs":
        truths = played(config, script, seed, conditions).engine.truths.values()
        scheduled = [each.scheduled_ns for each in truths if each.scheduled_ns is not None]
        assert scheduled == sorted(scheduled)
