"""Why a request was late: the causes in its truth."""

from __future__ import annotations

import pytest

from otel_llm.simulator.truth import Cause, Log
from tests.simulator.engines import MS, STEP, engine, kinds, request, run, step


def test_a_request_alone_was_delayed_by_nothing() -> None:
    """No wait, no cause."""
    one = engine()
    run(one, [(5, request("a"))])
    assert one.truths["a"].causes == []


def test_a_request_waits_for_the_step_that_runs() -> None:
    """Batching is continuous, but not within a step."""
    one = engine()
    run(one, [(0, request("a")), (4 * MS, request("b"))])
    assert [Cause("waited_for_step", 4 * MS, STEP)] == one.truths["b"].causes


def test_a_request_waits_for_a_slot() -> None:
    """Until one of those who run has ended."""
    one = engine(max_num_seqs=1)
    run(one, [(0, request("a", answer=4)), (0, request("b"))])
    assert [Cause("waited_for_slots", 0, 4 * STEP)] == one.truths["b"].causes


def test_a_request_waits_for_blocks() -> None:
    """Until one of those who run has given its own back."""
    one = engine(num_blocks=4)
    run(one, [(0, request("a", prompt=11, answer=4)), (0, request("b", prompt=8))])
    assert [Cause("waited_for_kv_cache", 0, 4 * STEP)] == one.truths["b"].causes


def test_a_request_waits_behind_a_long_prompt() -> None:
    """Which one it was, and how long."""
    one = engine(max_num_batched_tokens=16)
    run(one, [(0, request("long", prompt=48, answer=1)), (MS, request("b", answer=1))])
    expected = Cause("behind_long_prompt", MS, 3 * STEP, "48 tokens", "long")
    assert [expected] == one.truths["b"].causes


def test_a_request_waits_behind_many_short_prompts() -> None:
    """A crowd uses up the tokens of a step, too."""
    one = engine(max_num_batched_tokens=16)
    run(one, [(0, request(name, prompt=4, answer=1)) for name in "abcde"])
    assert [Cause("waited_for_budget", 0, STEP)] == one.truths["e"].causes


def test_a_long_prompt_delays_those_who_decode() -> None:
    """All but itself."""
    one = engine(max_num_batched_tokens=16)
    run(one, [(0, request("a", answer=6)), (MS, request("long", prompt=40, answer=1))])
    assert [Cause("behind_long_prompt", STEP, 4 * STEP, "40 tokens", "long")] == one.truths[
        "a"
    ].causes
    assert kinds(one, "long") == ["waited_for_step"]


def test_a_preempted_request_says_when_it_was_out_and_computed_again() -> None:
    """From the step that pushed it out until its next token."""
    one = engine(num_blocks=4, prefix_caching=False)
    run(one, [(0, request("a", prompt=8, answer=3)), (0, request("b", prompt=8, answer=2))])
    assert one.truths["b"].preemptions == [(STEP, 3 * STEP)]
    assert [
        Cause("preempted", STEP, 3 * STEP),
        Cause("recomputation", 3 * STEP, 4 * STEP),
    ] == one.truths["b"].causes


def test_an_abort_ends_a_preemption() -> None:
    """It lasted until then."""
    one = engine(num_blocks=4, prefix_caching=False)
    for name in "ab":
        one.submit(request(name, prompt=8, answer=9), 0)
    step(one)
    step(one, STEP)
    one.abort("b", 2 * STEP + 3)
    assert one.truths["b"].preemptions == [(STEP, 2 * STEP + 3)]
    assert kinds(one, "b") == ["preempted"]


def test_reasons_of_a_long_wait_follow_each_other() -> None:
    """First no slot, then the tokens of a prompt ahead of it."""
    one = engine(max_num_seqs=2, max_num_batched_tokens=16)
    arrivals = [request("a", answer=2), request("b", answer=2), request("long", prompt=64)]
    run(one, [(0, each) for each in [*arrivals, request("last", answer=1)]])
    waits = [(each.kind, each.from_ns, each.until_ns) for each in one.truths["last"].causes]
    assert waits == [
        ("waited_for_slots", 0, 2 * STEP),
        ("behind_long_prompt", 2 * STEP, 6 * STEP),
    ]


def test_a_step_that_is_over_delays_nobody() -> None:
    """Who comes between two steps waits for the engine, not behind the prompt of the last one."""
    one = engine(max_num_batched_tokens=8)
    one.submit(request("long", prompt=8, answer=1), 0)
    step(one)
    one.submit(request("b", answer=1), STEP)
    step(one, STEP + 5)
    assert one.truths["b"].causes == [Cause("waited_for_step", STEP, STEP + 5)]


def test_a_log_joins_what_goes_on_and_cuts_what_is_asked_for() -> None:
    """The same cause step after step is one cause."""
    log = Log()
    for begin, end in ((0, 10), (10, 20), (30, 40)):
        log.add(Cause("slow_step", begin, end))
    log.add(Cause("nothing", 40, 40))
    assert len(log) == 2
    found = [(cause.from_ns, cause.until_ns) for cause in log.between(5, 35)]
    assert found == [(5, 20), (30, 35)]


def test_a_log_forgets_what_nobody_can_ask_for() -> None:
    """What was over before."""
    log = Log()
    log.add(Cause("a", 0, 10))
    log.add(Cause("b", 10, 20))
    log.forget(15)
    assert [Cause("b", 10, 20)] == log.between(0, 99)


def test_truth_is_right_when_causes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old causes are dropped, those of the requests that are here are not."""
    plain, sparing = engine(max_num_seqs=2), engine(max_num_seqs=2)
    monkeypatch.setattr(sparing, "_most_delays", 2)
    monkeypatch.setattr("otel_llm.simulator.engine.MOST_DELAYS", 2)
    for one in (plain, sparing):
        run(one, [(n * 7 * MS, request(f"r{n}", answer=1 + n % 4)) for n in range(60)])
    assert plain.truths == sparing.truths
    assert sparing._delays.size < 60
