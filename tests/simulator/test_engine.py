"""The engine from outside: requests in, steps, outputs, what it refuses."""

from __future__ import annotations

import pytest

from otel_llm.simulator.conditions import Conditions
from otel_llm.simulator.engine import (
    DuplicateRequest,
    EngineConfig,
    Output,
    PromptTooLong,
    QueueFull,
    Stats,
    WrongStep,
)
from otel_llm.simulator.hardware import HARDWARE, MODELS, CostModel
from tests.simulator.engines import MS, STEP, config, engine, request, run, step


def test_a_request_gets_its_tokens_one_by_one() -> None:
    """The first at the end of its prefill, and the last says why it is the last."""
    one = engine()
    one.submit(request("a", answer=3), 0)
    outputs = [output for _ in range(3) for output in step(one)[1]]
    assert [Output("a", 1), Output("a", 1), Output("a", 1, "length")] == outputs
    assert one.begin_step(STEP) is None


@pytest.mark.parametrize(
    ("stops_at", "reason", "tokens"),
    [(None, "length", 5), (2, "stop", 2), (5, "stop", 5), (6, "length", 5)],
)
def test_an_answer_stops_by_itself_or_at_its_limit(
    stops_at: int | None, reason: str, tokens: int
) -> None:
    """The earlier of the two, and which it was."""
    one = engine()
    one.submit(request("a", answer=5, stops_at=stops_at), 0)
    run(one)
    assert (reason, tokens) == (one.truths["a"].finish_reason, one.truths["a"].output_tokens)


def test_the_length_of_the_model_ends_an_answer() -> None:
    """Prompt and answer together are never longer than `max_model_len`."""
    one = engine(max_model_len=10)
    one.submit(request("a", prompt=7, answer=50), 0)
    run(one)
    assert (one.truths["a"].finish_reason, one.truths["a"].output_tokens) == ("length", 3)


def test_instants_are_those_of_the_steps() -> None:
    """Queued when submitted, scheduled when a step begins, tokens when it ends."""
    one = engine()
    run(one, [(0, request("a", answer=5)), (3 * MS, request("b", answer=2))])
    truth = one.truths["b"]
    assert (truth.queued_ns, truth.scheduled_ns) == (3 * MS, STEP)
    assert truth.output_ns == [(2 * STEP, 1), (3 * STEP, 1)]
    assert (truth.first_token_ns, truth.last_token_ns) == (2 * STEP, 3 * STEP)
    assert truth.finished_ns == 3 * STEP


def test_a_step_may_end_late() -> None:
    """In real time a step takes longer than planned; what counts is when it ended."""
    one = engine()
    one.submit(request("a", answer=1), 0)
    begun = one.begin_step(0)
    assert begun is not None
    assert begun.duration_ns == STEP
    one.end_step(begun, STEP + 7)
    assert one.truths["a"].first_token_ns == STEP + 7


def test_a_step_costs_what_is_in_it() -> None:
    """Prompt tokens, pairs they attend to, decoding sequences and cached tokens are all charged."""
    cost = CostModel(sequence_s=1, token_s=1e-3, pair_s=1e-6)
    one = engine(cost=cost, max_num_batched_tokens=8)
    one.submit(request("a", prompt=4, answer=2), 0)
    assert pytest.approx(step(one)[0].duration_ns / 1e9) == 4e-3 + 10e-6
    one.submit(request("b", prompt=9, answer=2), 0)
    begun, _ = step(one)
    assert (begun.prefill_tokens, begun.decode_tokens) == (7, 1)
    assert pytest.approx(begun.duration_ns / 1e9) == 1 + 8e-3 + 28e-6


def test_cached_tokens_are_read_in_every_step() -> None:
    """Longer contexts decode more slowly."""
    one = engine(cost=CostModel(kv_token_s=1e-3))
    one.submit(request("a", prompt=4, answer=3), 0)
    assert [step(one)[0].duration_ns for _ in range(3)] == [4 * MS, 5 * MS, 6 * MS]


def test_a_full_queue_rejects() -> None:
    """One more than may wait is refused, and its truth says so."""
    one = engine(max_queued=1)
    one.submit(request("a"), 0)
    with pytest.raises(QueueFull, match="1 requests wait already"):
        one.submit(request("b"), 5)
    truth = one.truths["b"]
    assert (truth.finish_reason, truth.finished_ns, truth.scheduled_ns) == ("rejected", 5, None)
    assert [cause.kind for cause in truth.causes] == ["queue_full"]


def test_a_prompt_without_room_for_an_answer_is_rejected() -> None:
    """The error says how long it may be."""
    one = engine(max_model_len=8)
    with pytest.raises(PromptTooLong, match="takes 7"):
        one.submit(request("a", prompt=8), 0)
    assert one.truths["a"].finish_reason == "rejected"
    one.submit(request("b", prompt=7), 0)


def test_an_id_is_used_once() -> None:
    """Also when the request has ended."""
    one = engine()
    one.submit(request("a"), 0)
    run(one)
    with pytest.raises(DuplicateRequest, match="another id"):
        one.submit(request("a"), 0)


def test_an_aborted_request_gets_nothing_more() -> None:
    """Not even from the step that runs; its blocks are free at once, others go on."""
    one = engine()
    one.submit(request("a"), 0)
    one.submit(request("b"), 0)
    begun = one.begin_step(0)
    assert begun is not None
    one.abort("a", 4 * MS)
    assert (one.truths["a"].finished_ns, one.truths["a"].finish_reason) == (4 * MS, "abort")
    assert one.stats.kv_usage == 0.01
    assert [Output("b", 1)] == one.end_step(begun, STEP)


def test_a_waiting_request_can_be_aborted() -> None:
    """It was never scheduled."""
    one = engine(max_num_seqs=1)
    one.submit(request("a"), 0)
    one.submit(request("b"), 0)
    step(one)
    one.abort("b", STEP)
    assert (one.truths["b"].scheduled_ns, one.truths["b"].finished_ns) == (None, STEP)
    assert one.stats.waiting == 0


def test_aborting_what_is_not_there_does_nothing() -> None:
    """Unknown or finished."""
    one = engine()
    one.submit(request("a"), 0)
    end = run(one)
    one.abort("a", end + 5)
    one.abort("z", end + 5)
    assert (end, "length") == (one.truths["a"].finished_ns, one.truths["a"].finish_reason)


def test_a_step_ends_once_and_before_the_next_begins() -> None:
    """Any other order is an error of who drives the engine."""
    one = engine()
    one.submit(request("a"), 0)
    begun = one.begin_step(0)
    assert begun is not None
    with pytest.raises(WrongStep):
        one.begin_step(0)
    one.end_step(begun, STEP)
    with pytest.raises(WrongStep):
        one.end_step(begun, STEP)


def test_time_never_goes_back() -> None:
    """An earlier instant than the last one counts as the last one."""
    one = engine()
    one.submit(request("a"), 50)
    one.submit(request("b"), 20)
    assert one.truths["b"].queued_ns == 50


def test_the_counters_tell_what_happened() -> None:
    """Gauges while it runs, counters afterwards."""
    one = engine(max_num_seqs=1, num_blocks=10)
    one.submit(request("a", prompt=8), 0)
    one.submit(request("b", prompt=8), 0)
    step(one)
    assert (one.stats.running, one.stats.waiting, one.stats.kv_usage) == (1, 1, 0.2)
    run(one, now_ns=STEP)
    assert (
        Stats(
            prefix_queries=16, prompt_tokens=16, generation_tokens=6, steps=6, ended={"length": 2}
        )
        == one.stats
    )


def test_seeds_make_runs_equal_or_different() -> None:
    """Drafts are accepted and neighbours noisy by chance, which the seed decides."""

    def truths(seed: int) -> object:
        conditions = Conditions()
        conditions.disturb(0.05, 0.5)
        one = engine(seed=seed, conditions=conditions, speculative_tokens=3)
        run(one, [(n * 5 * MS, request(f"r{n}", answer=20)) for n in range(10)])
        return one.truths

    assert truths(1) == truths(1)
    assert truths(1) != truths(2)


def test_an_engine_is_made_of_hardware_and_model() -> None:
    """Its cost, its blocks and its longest request follow; anything can be set besides."""
    made = EngineConfig.of(HARDWARE["L4"], MODELS["Llama-3.1-8B"], max_num_seqs=8)
    assert (8, made.num_blocks * 16) == (made.max_num_seqs, made.longest)
    assert CostModel.of(HARDWARE["L4"], MODELS["Llama-3.1-8B"]) == made.cost
    assert EngineConfig.of(HARDWARE["H200"], MODELS["Llama-3.1-8B"]).longest == 131_072


def test_a_forgotten_truth_does_not_break_the_engine() -> None:
    """Who keeps an engine for long may take truths out, even of what still runs."""
    one = engine()
    one.submit(request("a"), 0)
    one.truths.clear()
    run(one)
    assert one.stats.ended == {"length": 1}


def test_the_longest_request_is_what_the_cache_holds() -> None:
    """Unless it is set."""
    assert (config().longest, config(max_model_len=100).longest) == (400, 100)
