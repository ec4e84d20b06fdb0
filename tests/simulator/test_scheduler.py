"""Who is computed in which step."""

from __future__ import annotations

import pytest

from otel_llm.simulator.conditions import Conditions
from tests.simulator.engines import chunks, config, engine, request, step


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """The budget of a step cuts a prompt; the last chunk gives the first token."""
    one = engine(max_num_batched_tokens=8)
    one.submit(request("a", prompt=20, answer=2), 0)
    assert chunks(one) == [{"a": 8}, {"a": 8}, {"a": 4}, {"a": 1}]
    assert one.truths["a"].prefill_chunks == 3


def test_running_sequences_come_before_waiting_ones() -> None:
    """A decoding sequence gets its token first; a new prompt gets what is left of the budget."""
    one = engine(max_num_batched_tokens=8)
    one.submit(request("a", prompt=4, answer=3), 0)
    step(one)
    one.submit(request("b", prompt=10, answer=1), 0)
    assert chunks(one) == [{"a": 1, "b": 7}, {"a": 1, "b": 3}]


def test_waiting_requests_share_a_step() -> None:
    """As many prompts as fit into the budget are computed together."""
    one = engine(max_num_batched_tokens=10)
    for name in "abc":
        one.submit(request(name, prompt=4, answer=1), 0)
    assert chunks(one) == [{"a": 4, "b": 4, "c": 2}, {"c": 2}]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    """A whole prompt or nothing, and nobody overtakes it."""
    one = engine(max_num_batched_tokens=12, max_model_len=12, chunked_prefill=False)
    for name, prompt in (("a", 8), ("b", 8), ("c", 2)):
        one.submit(request(name, prompt=prompt, answer=1), 0)
    assert chunks(one) == [{"a": 8}, {"b": 8, "c": 2}]


@pytest.mark.parametrize(("reserve", "step"), [(True, {"a": 1}), (False, {"a": 1, "b": 7})])
def test_a_prompt_may_have_to_fit_whole(reserve: bool, step: dict[str, int]) -> None:
    """By default it is not begun before there are blocks for all of it."""
    one = engine(num_blocks=5, max_num_batched_tokens=8, scheduler_reserve_full_isl=reserve)
    one.submit(request("a", prompt=8, answer=2), 0)
    one.submit(request("b", prompt=12, answer=2), 0)
    assert chunks(one)[1] == step


def test_no_more_run_than_may() -> None:
    """The next one is admitted in the step after one has ended."""
    one = engine(max_num_seqs=2)
    for name in "abc":
        one.submit(request(name, answer=2), 0)
    assert chunks(one) == [{"a": 4, "b": 4}, {"a": 1, "b": 1}, {"c": 4}, {"c": 1}]


def test_a_shared_beginning_is_computed_once() -> None:
    """Full blocks of an earlier prompt are taken from the prefix cache."""
    one = engine()
    one.submit(request("a", prompt=10, answer=1, first=7), 0)
    step(one)
    one.submit(request("b", prompt=10, answer=1, first=7), 0)
    assert chunks(one) == [{"b": 2}]
    assert one.truths["b"].cached_tokens == 8
    assert (one.stats.prefix_queries, one.stats.prefix_hits) == (20, 8)


def test_prompts_of_one_step_share_their_beginning_too() -> None:
    """A block can be found once the step that fills it is scheduled."""
    one = engine()
    one.submit(request("a", prompt=10, answer=1, first=7), 0)
    one.submit(request("b", prompt=10, answer=1, first=7), 0)
    assert chunks(one) == [{"a": 10, "b": 2}]


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is cached whole still gives its first token by a step of its own."""
    one = engine()
    one.submit(request("a", prompt=8, answer=1, first=7), 0)
    step(one)
    one.submit(request("b", prompt=8, answer=1, first=7), 0)
    assert chunks(one) == [{"b": 4}]


def test_without_prefix_caching_all_is_computed() -> None:
    """Two equal prompts cost twice."""
    one = engine(prefix_caching=False)
    one.submit(request("a", prompt=8, answer=1, first=7), 0)
    one.submit(request("b", prompt=8, answer=1, first=7), 0)
    assert chunks(one) == [{"a": 8, "b": 8}]


def test_a_full_cache_pushes_out_the_last_admitted() -> None:
    """It loses its blocks, waits at the head of the queue and is computed anew."""
    one = engine(num_blocks=5, prefix_caching=False)
    for name, prompt in (("a", 8), ("b", 8), ("c", 4)):
        one.submit(request(name, prompt=prompt, answer=6), 0)
    expected = [
        {"a": 8, "b": 8, "c": 4},  # 2 + 2 + 1 blocks: full
        {"a": 1},  # needs a third: c goes, then b's third: b goes itself
    ]
    found = chunks(one)
    assert expected == found[:2]
    order = [name for each in found[2:] for name in each]
    assert order.index("b") < order.index("c")
    assert all(one.truths[name].preemptions for name in "bc")
    assert not one.truths["a"].preemptions


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    """What was not given away in the meantime is taken from the prefix cache."""
    one = engine(num_blocks=5)
    one.submit(request("a", prompt=8, answer=2), 0)
    one.submit(request("b", prompt=12, answer=2), 0)
    assert chunks(one) == [{"a": 8, "b": 12}, {"a": 1}, {"b": 5}]


def test_nobody_is_admitted_in_a_step_that_pushed_someone_out() -> None:
    """Not even the one pushed out, for whose next chunk there is a block."""
    one = engine(num_blocks=4, max_num_batched_tokens=5, scheduler_reserve_full_isl=False)
    one.submit(request("a", prompt=8, answer=3), 0)
    one.submit(request("b", prompt=8, answer=2), 0)
    assert chunks(one)[:4] == [{"a": 5}, {"a": 3, "b": 2}, {"a": 1}, {"a": 1, "b": 4}]


def test_priority_decides_who_goes_first_and_who_is_pushed_out() -> None:
    """The lower number is admitted first; the highest loses its blocks though admitted first."""
    one = engine(num_blocks=6, policy="priority", prefix_caching=False)
    one.submit(request("low", prompt=8, answer=9, priority=9), 0)
    step(one)
    for name, priority in (("later", 2), ("sooner", 1)):
        one.submit(request(name, prompt=4, answer=9, priority=priority), 0)
    assert list(chunks(one)[0]) == ["low", "sooner", "later"]
    assert [bool(each.preemptions) for each in one.truths.values()] == [True, False, False]


def test_a_sequence_pushed_out_after_it_was_scheduled_is_not_computed() -> None:
    """Under priority it may be; the block it would have filled is not to be found."""
    half = Conditions()
    half.take_blocks(0.5)
    one = engine(num_blocks=8, policy="priority", conditions=half)
    one.submit(request("low", prompt=6, answer=8, priority=9), 0)
    step(one)
    one.submit(request("high", prompt=8, answer=8, priority=1), 0)
    step(one)
    begun, _ = step(one)
    assert [share.sequence.request.id for share in begun.shares] == ["high"]
    assert len(one._scheduler.pool.lookup(one._live["low"].hashed(2, 4))) == 1


def test_who_pushes_itself_out_does_not_stop_the_others() -> None:
    """The first to run may have the least priority; the step is planned again without it."""
    one = engine(num_blocks=4, policy="priority")
    one.submit(request("low", prompt=7, answer=9, priority=9), 0)
    step(one)
    one.submit(request("high", prompt=8, answer=9, priority=1), 0)
    assert chunks(one)[:2] == [{"low": 1, "high": 8}, {"high": 1}]


def test_priorities_count_only_under_that_policy() -> None:
    """First come, first served otherwise."""
    one = engine(max_num_seqs=1)
    one.submit(request("a", answer=1, priority=9), 0)
    one.submit(request("b", answer=1, priority=1), 0)
    assert chunks(one) == [{"a": 4}, {"b": 4}]


def test_drafts_are_verified_together() -> None:
    """With two drafts a step computes three tokens, and gives three if both are right."""
    always = Conditions()
    always.accept(1.0)
    one = engine(speculative_tokens=2, conditions=always)
    one.submit(request("a", answer=8), 0)
    assert chunks(one) == [{"a": 4}, {"a": 3}, {"a": 3}, {"a": 1}]
    assert [tokens for _, tokens in one.truths["a"].output_ns] == [1, 3, 3, 1]
    assert (one.stats.draft_tokens, one.stats.accepted_tokens) == (4, 4)


def test_wrong_drafts_give_one_token() -> None:
    """A step always gives one token, however bad the drafts are."""
    never = Conditions()
    never.accept(0.0)
    one = engine(speculative_tokens=2, conditions=never)
    one.submit(request("a", answer=3), 0)
    assert chunks(one) == [{"a": 4}, {"a": 2}, {"a": 1}]


def test_a_block_of_drafts_is_not_to_be_found() -> None:
    """They may be wrong."""
    never = Conditions()
    never.accept(0.0)
    one = engine(speculative_tokens=2, conditions=never)
    one.submit(request("a", prompt=6, answer=9), 0)
    step(one)
    step(one)
    assert len(one._scheduler.pool.lookup(one._live["a"].hashed(2, 4))) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_blocks": 0}, "at least 1"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_queued": 0}, "max_queued"),
        ({"num_blocks": 2, "max_model_len": 9}, "lower max_model_len"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 9}, "raise max_num_batched_tokens"),
    ],
)
def test_an_engine_that_cannot_work_is_refused(wrong: dict, says: str) -> None:
    """The error says what to change."""
    with pytest.raises(ValueError, match=says):
        config(**wrong)


@pytest.mark.parametrize("wrong", [{"prompt": 0}, {"answer": 0}, {"stops_at": 0}])
def test_a_request_without_tokens_is_refused(wrong: dict) -> None:
    """A prompt has a token, and so has an answer."""
    with pytest.raises(ValueError, match="at least one token"):
        request("a", **wrong)
