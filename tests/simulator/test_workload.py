"""Who asks when, and for how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median, stdev

import pytest

from otel_llm.simulator.engine import EngineConfig
from otel_llm.simulator.hardware import HARDWARE, MODELS
from otel_llm.simulator.serving.tokens import tokenize
from otel_llm.simulator.workload import (
    AGENT,
    CHAT,
    MIX,
    Arrival,
    Lengths,
    RequestClass,
    Window,
    Workload,
    capacity_per_s,
)

H100 = EngineConfig.of(HARDWARE["H100-SXM"], MODELS["Llama-3.1-8B"])


def gaps(arrivals: list[Arrival]) -> list[float]:
    """Seconds between two arrivals."""
    times = [each.at_s for each in arrivals]
    return [later - earlier for earlier, later in pairwise(times)]


def test_the_same_seed_gives_the_same_run() -> None:
    """And another seed another one."""
    workload = Workload(5.0)
    assert workload.arrivals(1, 50) == workload.arrivals(1, 50) != workload.arrivals(2, 50)


def test_more_requests_begin_with_the_same_ones() -> None:
    """A longer run is the shorter one, continued."""
    workload = Workload(5.0)
    assert workload.arrivals(1, 100)[:50] == workload.arrivals(1, 50)


def test_arrivals_are_poisson() -> None:
    """Gaps have the mean of the rate, and a spread as large as their mean."""
    waits = gaps(Workload(4.0).arrivals(0, 4000))
    assert mean(waits) == pytest.approx(0.25, rel=0.05)
    assert stdev(waits) == pytest.approx(0.25, rel=0.08)


def test_bursts_come_faster() -> None:
    """Within a burst the rate is the given multiple, outside it is not."""
    workload = Workload(4.0, burst=5.0, burst_every_s=20.0, burst_s=4.0)
    times = [each.at_s for each in workload.arrivals(0, 4000)]
    rounds = times[-1] / 20.0
    inside = sum(1 for at in times if at % 20.0 < 4.0)
    assert inside / (rounds * 4.0) == pytest.approx(20.0, rel=0.08)
    assert (len(times) - inside) / (rounds * 16.0) == pytest.approx(4.0, rel=0.08)


def test_classes_come_by_their_weight() -> None:
    """And so do streams by their share."""
    counts = Counter(each.name for each in Workload(1.0).arrivals(0, 5000))
    total = sum(each.weight for each in MIX)
    for kind in MIX:
        assert counts[kind.name] / 5000 == pytest.approx(kind.weight / total, abs=0.02)
    summaries = [e.stream for e in Workload(1.0).arrivals(0, 5000) if e.name == "summarise"]
    assert mean(summaries) == pytest.approx(0.3, abs=0.06)


def test_lengths_are_log_normal() -> None:
    """The median is the one given, the mean is above it as the spread says."""
    lengths = Lengths(200, 0.8)
    kind = RequestClass("one", lengths, Lengths(10))
    drawn = [each.prompt_tokens for each in Workload(1.0, (kind,)).arrivals(0, 5000)]
    assert median(drawn) == pytest.approx(200, rel=0.05)
    assert mean(drawn) == pytest.approx(lengths.mean, rel=0.06)


def test_lengths_keep_their_bounds() -> None:
    """No prompt is empty, and none longer than the most."""
    kind = RequestClass("one", Lengths(10, 3.0, most=50), Lengths(2, 3.0, most=5))
    arrivals = Workload(1.0, (kind,)).arrivals(0, 500)
    assert {1, 50} <= {each.prompt_tokens for each in arrivals} <= set(range(1, 51))
    assert {1, 5} <= {each.max_tokens for each in arrivals} <= set(range(1, 6))


def test_no_request_is_longer_than_the_engine_takes() -> None:
    """Prompts are cut, and room stays for the answer and the chat template."""
    arrivals = Workload(1.0, longest=600).arrivals(0, 500)
    assert max(each.prompt_tokens + each.max_tokens for each in arrivals) <= 600 - 64
    assert min(each.prompt_tokens for each in arrivals) > 0


@pytest.mark.parametrize("prompt_tokens", [1, 2, 100, 5000])
def test_a_prompt_has_as_many_tokens_as_it_should(prompt_tokens: int) -> None:
    """One word is one token."""
    arrival = Arrival(9_999_999, 0.0, "chat", "m", prompt_tokens, 1, stream=True)
    assert len(tokenize(arrival.prompt)) == prompt_tokens


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    """Agents have one long head; the words behind it differ at once."""
    arrivals = Workload(1.0, (AGENT,)).arrivals(0, 20)
    prompts = [tokenize(each.prompt) for each in arrivals]
    assert len({tuple(tokens[: AGENT.prefix_tokens]) for tokens in prompts}) == 1
    assert len({tokens[AGENT.prefix_tokens] for tokens in prompts}) == 20


def test_requests_without_a_prefix_share_nothing() -> None:
    """Their first word differs, and so does every block behind it."""
    prompts = [tokenize(each.prompt) for each in Workload(1.0, (CHAT,)).arrivals(0, 50)]
    assert len({tokens[0] for tokens in prompts}) == 50


def test_a_class_that_is_mixed_in_leaves_the_others_alone() -> None:
    """It takes its share in its window, and every other arrival stays as it was."""
    plain = Workload(1.0)
    kind = RequestClass("more", Lengths(9), Lengths(9), weight=0.25, window=Window(100, 300))
    before, after = (each.arrivals(0, 1000) for each in (plain, plain.mixed(kind)))
    changed = [b for a, b in zip(before, after, strict=True) if a != b]
    assert {each.name for each in changed} == {"more"}
    assert all(100 <= each.at_s < 300 for each in changed)
    assert len(changed) == pytest.approx(50, abs=20)


@pytest.mark.parametrize("wrong", [{"rate_per_s": 0.0}, {"rate_per_s": 1.0, "classes": ()}])
def test_a_workload_without_requests_is_refused(wrong: dict[str, float]) -> None:
    """It would never begin."""
    with pytest.raises(ValueError, match="above 0"):
        Workload(**wrong)  # type: ignore[arg-type]


def test_utilisation_is_a_share_of_the_capacity() -> None:
    """Half of it is half the rate, and what the engine cannot hold is not asked for."""
    half = Workload.at_utilisation(0.5, H100)
    assert half.rate_per_s == capacity_per_s(H100) / 2
    assert half.longest == H100.longest


def test_capacity_falls_with_the_kv_cache_and_with_longer_answers() -> None:
    """A smaller batch does less, and more tokens take longer."""
    small = replace(H100, num_blocks=1000, max_model_len=16_000)
    longer = (replace(CHAT, output=Lengths(900)),)
    assert capacity_per_s(small) < capacity_per_s(H100)
    assert capacity_per_s(H100, longer) < capacity_per_s(H100, (CHAT,)) / 3
