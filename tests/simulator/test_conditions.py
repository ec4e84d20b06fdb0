"""What faults do to an engine, and how its truth names it."""

from __future__ import annotations

from random import Random

import pytest

from otel_llm.simulator.conditions import FOREVER, Conditions
from otel_llm.simulator.truth import Cause
from tests.simulator.engines import MS, STEP, engine, kinds, request, run, step


def test_a_slow_replica_takes_longer_while_it_lasts() -> None:
    """Steps that begin inside the window take three times as long; no step after it."""
    conditions = Conditions()
    conditions.slow(3, STEP, 2 * STEP)
    one = engine(conditions=conditions)
    one.submit(request("a", answer=3), 0)
    run(one)
    assert one.truths["a"].output_ns == [(STEP, 1), (4 * STEP, 1), (5 * STEP, 1)]
    expected = Cause("slow_step", STEP, 4 * STEP, "3 times as long")
    assert [expected] == one.truths["a"].causes


def test_a_slow_step_delays_those_who_wait_too() -> None:
    """Until their first step two things are true: a step was running, and it was a slow one."""
    conditions = Conditions()
    conditions.slow(2, cause="cpu_throttling")
    one = engine(conditions=conditions)
    run(one, [(0, request("a")), (MS, request("b", answer=1))])
    assert [
        Cause("waited_for_step", MS, 2 * STEP),
        Cause("cpu_throttling", MS, 4 * STEP, "2 times as long"),
    ] == one.truths["b"].causes


def test_a_noisy_neighbour_disturbs_some_steps() -> None:
    """About half of them, by its time."""
    conditions = Conditions()
    conditions.disturb(0.04, 0.5)
    one = engine(conditions=conditions)
    one.submit(request("a", answer=200), 0)
    durations = [step(one)[0].duration_ns for _ in range(200)]
    assert {STEP, 5 * STEP} == set(durations)
    assert 70 < durations.count(STEP) < 130
    noisy = sum(cause.duration_ns for cause in one.truths["a"].causes)
    assert 5 * STEP * durations.count(5 * STEP) == noisy


def test_troubles_of_a_kind_add_up() -> None:
    """Factors multiply, extra times add."""
    conditions = Conditions()
    conditions.slow(2)
    conditions.slow(3, cause="cpu_throttling")
    conditions.disturb(0.1, 1)
    conditions.disturb(0.2, 1)
    found = conditions.of_step(0, Random(0))
    assert (found.factor, pytest.approx(found.extra_s)) == (6, 0.3)
    assert {"slow_step", "cpu_throttling", "noisy_neighbour"} == {t.kind for t in found.troubles}


def test_a_spell_can_be_ended_early() -> None:
    """Its end can be moved."""
    conditions = Conditions()
    spell = conditions.slow(2)
    assert spell.until_ns == FOREVER
    spell.until_ns = 50
    assert [conditions.of_step(at, Random(0)).factor for at in (49, 50)] == [2, 1]


def test_no_step_computes_while_a_model_loads() -> None:
    """A request waits for the load, which is a part of its wait and a cause of it."""
    conditions = Conditions()
    conditions.load(0, 500 * MS)
    one = engine(conditions=conditions)
    run(one, [(100 * MS, request("a", answer=1))])
    truth = one.truths["a"]
    assert (truth.load_ns, truth.scheduled_ns) == (400 * MS, 500 * MS)
    assert [Cause("model_load", 100 * MS, 500 * MS)] == truth.causes


def test_who_leaves_during_a_load_has_waited_for_it() -> None:
    """Up to the abort."""
    conditions = Conditions()
    conditions.load(0, 500 * MS)
    one = engine(conditions=conditions)
    one.submit(request("a"), 0)
    assert one.begin_step(0)
    one.abort("a", 200 * MS)
    assert one.truths["a"].load_ns == 200 * MS


def test_a_load_stops_those_who_run() -> None:
    """A model swapped out in the middle of an answer; that is no part of the wait before it."""
    conditions = Conditions()
    conditions.load(STEP, 50 * STEP)
    one = engine(conditions=conditions)
    one.submit(request("a", answer=2), 0)
    run(one)
    assert one.truths["a"].output_ns == [(STEP, 1), (51 * STEP, 1)]
    assert [Cause("model_load", STEP, 50 * STEP)] == one.truths["a"].causes
    assert one.truths["a"].load_ns == 0


def test_fewer_blocks_make_requests_wait() -> None:
    """With nine tenths of the cache taken, two requests do not run side by side."""
    conditions = Conditions()
    spell = conditions.take_blocks(0.9)
    one = engine(conditions=conditions, num_blocks=40, max_model_len=16)
    for name in "ab":
        one.submit(request(name, prompt=12, answer=2), 0)
    run(one)
    assert kinds(one, "b") == ["waited_for_kv_cache"]
    assert one.truths["a"].last_token_ns == one.truths["b"].scheduled_ns
    spell.until_ns = 0
    one.submit(request("c", prompt=12), 0)
    step(one)
    assert one.stats.kv_usage == 3 / 40


def test_blocks_taken_from_those_who_run_push_some_out() -> None:
    """What is in use stays until somebody grows."""
    conditions = Conditions()
    conditions.take_blocks(0.5, STEP)
    one = engine(conditions=conditions, num_blocks=8, max_model_len=24)
    for name in "ab":
        one.submit(request(name, prompt=12, answer=8), 0)
    run(one)
    assert one.truths["b"].preemptions
    assert one.stats.ended == {"length": 2}


def test_all_blocks_taken_still_leave_what_one_request_needs() -> None:
    """Nothing waits for ever."""
    conditions = Conditions()
    conditions.take_blocks(1.0)
    one = engine(conditions=conditions)
    for name in "abc":
        one.submit(request(name, prompt=30, answer=20), 0)
    run(one)
    assert one.stats.ended == {"length": 3}


def test_a_flushed_cache_is_computed_again() -> None:
    """As after a deploy; the truth says how many tokens, and from when until when."""
    conditions = Conditions()
    one = engine(conditions=conditions)
    one.submit(request("a", prompt=12, answer=1, first=5), 0)
    end = run(one)
    conditions.flush_cache(end + 1)
    one.submit(request("b", prompt=12, answer=1, first=5), end + 2)
    run(one, now_ns=end + 2)
    assert one.truths["b"].cached_tokens == 0
    expected = Cause("cold_cache", end + 2, end + 2 + STEP, "8 tokens")
    assert [expected] == one.truths["b"].causes


def test_only_the_first_after_a_flush_finds_it_cold() -> None:
    """It warms the cache for the others; a prompt that was never there is no fault of the flush."""
    conditions = Conditions()
    one = engine(conditions=conditions)
    run(one, [(0, request("a", prompt=12, answer=1, first=5))])
    conditions.flush_cache(STEP)
    later = [request("b", 12, 1, first=5), request("c", 12, 1, first=5), request("new", 12, 1)]
    run(one, [(100 * MS * n, each) for n, each in enumerate(later, 1)], STEP)
    assert [kinds(one, each.id) for each in later] == [["cold_cache"], [], []]


def test_what_is_computed_again_after_a_preemption_is_no_cold_cache() -> None:
    """Even if a flush took what it had computed."""
    conditions = Conditions()
    conditions.flush_cache(MS)
    one = engine(conditions=conditions, num_blocks=4)
    run(one, [(0, request("a", prompt=8)), (0, request("b", prompt=8, answer=2))])
    assert kinds(one, "b") == ["preempted", "recomputation"]


def test_who_leaves_during_a_slow_step_was_delayed_by_it() -> None:
    """Up to the abort."""
    conditions = Conditions()
    conditions.slow(4)
    one = engine(conditions=conditions)
    one.submit(request("a"), 0)
    assert one.begin_step(0)
    one.abort("a", 3 * STEP)
    assert one.truths["a"].causes == [Cause("slow_step", 0, 3 * STEP, "4 times as long")]


def test_drafts_are_accepted_as_often_as_is_said() -> None:
    """The rate of the window counts, the configured one outside it."""
    conditions = Conditions()
    conditions.accept(0.2, 100)
    assert [conditions.acceptance(at, 0.7) for at in (99, 100)] == [0.7, 0.2]
    one = engine(conditions=conditions, speculative_tokens=1, acceptance_rate=0.7)
    one.submit(request("a", answer=350), 0)
    run(one)
    assert 0.1 < one.stats.accepted_tokens / one.stats.draft_tokens < 0.3


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("slow", (0,)),
        ("slow", (float("nan"),)),
        ("disturb", (-1, 0.5)),
        ("disturb", (1, 1.5)),
        ("take_blocks", (1.1,)),
        ("accept", (-0.1,)),
    ],
)
def test_nonsense_is_refused(method: str, wrong: tuple) -> None:
    """Each condition says what it takes."""
    with pytest.raises(ValueError, match=str(wrong[0])):
        getattr(Conditions(), method)(*wrong)
