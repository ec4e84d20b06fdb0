"""What can go wrong: every fault moves what it says it moves, and nothing at strength 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from otel_llm.simulator.conditions import FOREVER
from otel_llm.simulator.faults import FAULTS, Fault, Setup, fault
from otel_llm.simulator.misbehaviour import CUT, ERROR_EVENT
from otel_llm.simulator.serving import ServingTruth
from otel_llm.simulator.workload import ALWAYS, Window
from tests.simulator.faulty import Played, play, setup

WANTED = {
    "long_prompts", "small_kv_cache", "slow_replica", "noisy_neighbour", "cpu_throttling",
    "slow_event_loop", "network_delay", "network_loss", "slow_reader", "cold_cache", "model_load",
    "spec_decode_drop", "retries", "upstream_errors", "aborts",
}  # fmt: skip
REFUSED = {"503", "429"}


def between(truth: ServingTruth, start: int | None, end: int | None) -> int:
    """Nanoseconds of a phase, 0 if the request did not come so far."""
    return 0 if start is None or end is None else max(0, end - start)


def preprocess(truth: ServingTruth) -> int:
    """Until the engine was asked."""
    return between(truth, truth.received_ns, truth.mark("queued_ns"))


def queue(truth: ServingTruth) -> int:
    """Until the first step, without the load of a model."""
    waited = between(truth, truth.mark("queued_ns"), truth.mark("scheduled_ns"))
    return waited - truth.load_ns


def prefill(truth: ServingTruth) -> int:
    """Until the first token."""
    return between(truth, truth.mark("scheduled_ns"), truth.mark("first_token_ns"))


def first_token(truth: ServingTruth) -> int:
    """Until the first token of a stream was taken."""
    delivered = truth.first_delivered_ns if truth.streaming else None
    return between(truth, truth.mark("first_token_ns"), delivered)


def decode(truth: ServingTruth) -> int:
    """From the first to the last token."""
    return between(truth, truth.mark("first_token_ns"), truth.mark("last_token_ns"))


def preempted(truth: ServingTruth) -> int:
    """Out of the batch."""
    return sum(until - since for each in truth.engine for since, until in each.preemptions)


def summed(of: Callable[[ServingTruth], int]) -> Callable[[Played], float]:
    """Of all requests."""
    return lambda played: sum(of(each) for each in played.truths)


def network(played: Played) -> float:
    """Seconds that clients waited and the server did not work, over requests that both saw end."""
    found = 0.0
    for each in played.sent:
        truth = played.truth_of(each.arrival.index)
        if truth is not None and truth.finished_ns and each.ended_s is not None:
            served_s = (truth.finished_ns - truth.received_ns) / 1e9
            found += each.ended_s - (each.sent_s or 0.0) - served_s
    return found


def retry(played: Played) -> float:
    """How many requests were answered after a refusal."""
    indexes = range(len(played.sent))
    return sum(1 for n in indexes if played.failures_of(n) and played.sent[n].error is None)


def ended(*kinds: str) -> Callable[[Played], float]:
    """How many requests ended for their clients because their last attempt failed so."""

    def count(played: Played) -> float:
        failed = {n: played.failures_of(n) for n in range(len(played.sent)) if played.sent[n].error}
        return sum(1 for each in failed.values() if each and each[-1] in kinds)

    return count


def left(streams: bool) -> Callable[[Played], float]:
    """How many readers left before the end."""

    def count(played: Played) -> float:
        found = [n for n, reading in played.readings.items() if reading.left]
        return sum(1 for n in found if played.sent[n].arrival.stream is streams)

    return count


MEASURES: dict[str, Callable[[Played], float]] = {
    "preprocess": summed(preprocess),
    "load": summed(lambda truth: truth.load_ns),
    "queue": summed(queue),
    "prefill": summed(prefill),
    "first_token": summed(first_token),
    "decode": summed(decode),
    "preempted": summed(preempted),
    "network": network,
    "consumer_stall": lambda played: sum(each.paused_s for each in played.readings.values()),
    "retry": retry,
    "error": ended("500", CUT, ERROR_EVENT),
    "rejected": ended(*REFUSED),
    "abandoned": left(True),
    "cancelled": left(False),
}
"""How much there is of each thing that a fault can move, in the truth alone."""


@cache
def played(given: Setup) -> Played:
    """Its run; many tests look at the same one."""
    return play(given)


def test_every_fault_is_there() -> None:
    """As many as were asked for, each under its own name."""
    assert set(FAULTS) == WANTED
    assert {each.name for each in FAULTS.values()} == WANTED


@pytest.mark.parametrize("each", FAULTS.values(), ids=lambda each: each.name)
def test_a_fault_moves_what_it_says(each: Fault) -> None:
    """At full strength by more than a tenth; with half of it by less."""
    before = played(each.presumes(setup()))
    some, much = (played(each.apply(setup(), strength)) for strength in (0.5, 1.0))
    for moved in each.moves:
        were, are, will_be = (MEASURES[moved](run) for run in (before, some, much))
        assert will_be > 1.1 * were, moved
        assert were <= are < will_be, moved


@pytest.mark.parametrize("each", FAULTS.values(), ids=lambda each: each.name)
def test_strength_0_changes_nothing(each: Fault) -> None:
    """The setup is the same, and so is the run."""
    assert each.apply(setup(), 0.0) == setup()


@pytest.mark.parametrize("each", FAULTS.values(), ids=lambda each: each.name)
def test_a_fault_changes_the_setup_and_not_the_one_given(each: Fault) -> None:
    """It is a pure function, and any strength does something."""
    given = setup()
    assert each.apply(given, 0.1) != given == setup()
    assert each.apply(given, 0.1) == each.apply(given, 0.1)


@pytest.mark.parametrize("each", FAULTS.values(), ids=lambda each: each.name)
def test_a_fault_keeps_to_its_window(each: Fault) -> None:
    """What ended before it began is as it would have been."""
    given = each.presumes(setup())
    window = given.part(0.7, 1.0)
    plain, late = played(given), play(each.apply(given, 1.0, window))
    before = [n for n, sent in enumerate(plain.sent) if (sent.ended_s or 1e9) < window.from_s]
    assert len(before) > 30
    assert [late.sent[n] for n in before] == [plain.sent[n] for n in before]
    assert late.sent != plain.sent


def test_the_same_setup_is_the_same_run() -> None:
    """All faults at once, twice."""
    given = setup(30)
    for each in FAULTS.values():
        given = each.apply(given, 0.2)
    first, again = play(given), play(given)
    assert first.sent == again.sent
    assert first.truths == again.truths


def test_faults_compose() -> None:
    """Each adds its own, in whatever order they come."""
    given = setup()
    for name in ("network_delay", "slow_reader", "small_kv_cache"):
        given = fault(name).apply(given, 0.5)
    both = play(given)
    for moved in ("network", "consumer_stall", "queue"):
        assert MEASURES[moved](both) > 1.1 * MEASURES[moved](played(setup()))


def test_a_window_in_fractions_is_one_in_seconds() -> None:
    """A part that ends with the run stays open, since requests end after the last has come."""
    given: Setup = setup(requests=80, rate_per_s=4.0)
    assert given.part(0.25, 0.5) == Window(5.0, 10.0)
    assert given.part(0.0, 1.0) == ALWAYS


def test_conditions_begin_with_the_run() -> None:
    """Seconds of the run become nanoseconds of the engine's clock."""
    given = fault("slow_replica").apply(setup(), 1.0, Window(2.0, 3.0))
    slow = given.conditions(start_ns=10_000_000_000)._slow[0]
    assert (slow.from_ns, slow.until_ns, slow.amount) == (12_000_000_000, 13_000_000_000, 4.0)
    always = fault("slow_replica").apply(setup()).conditions(0)._slow[0]
    assert always.until_ns == FOREVER


@pytest.mark.parametrize("strength", [-0.1, 1.1])
def test_a_strength_is_between_0_and_1(strength: float) -> None:
    """The message names the fault."""
    with pytest.raises(ValueError, match=r"strength of aborts.*0 to 1"):
        fault("aborts").apply(setup(), strength)


def test_faults_are_found_by_name() -> None:
    """With hyphens, too; a wrong name is met with the nearest right one and the whole list."""
    assert fault("slow-reader") is FAULTS["slow_reader"]
    with pytest.raises(ValueError, match=r"did you mean slow_reader\?.*long_prompts"):
        fault("slow_readr")


@pytest.mark.parametrize("each", FAULTS.values(), ids=lambda each: each.name)
def test_a_fault_describes_itself(each: Fault) -> None:
    """One sentence each, and what it moves are things that can be measured."""
    assert each.does.endswith(".")
    assert each.does.count(". ") == 0
    assert each.strongest
    assert each.moves
    assert set(each.moves) <= set(MEASURES)
