"""Weighted quantiles, against numpy and against whole populations."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.analysis import describe, quantile
from otel_llm.analysis.quantiles import Weighted

weights = st.sampled_from([1.0, 2.0, 3.5, 20.0])
values = st.floats(0, 1e6, allow_nan=False)


def test_nothing_has_no_distribution() -> None:
    """No value, no figure."""
    assert describe([]) is None
    assert quantile([], 0.5) is None


def test_one_value_is_every_quantile() -> None:
    """And its effective sample size is 1 whatever its weight."""
    found = describe([(3.0, 20.0)])
    assert found is not None
    assert (found.p50, found.p95, found.p99, found.mean, found.n_eff) == (3.0, 3.0, 3.0, 3.0, 1.0)


@pytest.mark.parametrize(("q", "wanted"), [(0.5, 50), (0.95, 95), (0.99, 99), (0.991, 100)])
def test_a_quantile_is_the_first_value_that_reaches_its_share(q: float, wanted: int) -> None:
    """Of 1 to 100, half lie at or below 50 and 99 % at or below 99."""
    assert wanted == quantile([(float(n), 1.0) for n in range(1, 101)], q)


def test_rounding_does_not_move_a_quantile() -> None:
    """Shares that are whole numbers of values in exact arithmetic are so here."""
    for n in range(20, 2_000, 20):
        assert n * 19 // 20 == quantile([(float(i), 1.0) for i in range(1, n + 1)], 0.95)


@given(st.lists(st.tuples(values, weights), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_quantiles_are_numpys(given_values: list[Weighted], q: float) -> None:
    """The same as numpy's inverted distribution function; at a step it may be either side."""
    column, weight = (np.array(each) for each in zip(*given_values, strict=True))
    near = [
        float(np.quantile(column, each, weights=weight, method="inverted_cdf"))
        for each in (q - 1e-9, q, q + 1e-9)
    ]
    found = quantile(given_values, q)
    assert found is not None
    assert near[0] <= found <= near[2]


def test_a_weight_is_as_good_as_that_many_values() -> None:
    """Weights 1 and 3 give what the values one and three times give."""
    found = describe([(1.0, 1.0), (2.0, 3.0), (9.0, 1.0)])
    wanted = describe([(1.0, 1.0), *[(2.0, 1.0)] * 3, (9.0, 1.0)])
    assert found is not None
    assert wanted is not None
    assert (wanted.p50, wanted.p95, wanted.mean) == (found.p50, found.p95, found.mean)


def test_the_effective_size_is_kishs() -> None:
    """(1 + 1 + 20)^2 / (1 + 1 + 400)."""
    found = describe([(1.0, 1.0), (2.0, 1.0), (3.0, 20.0)])
    assert found is not None
    assert pytest.approx(22**2 / 402) == found.n_eff


def test_what_was_all_seen_has_no_interval() -> None:
    """With weights of 1 nothing is estimated."""
    found = describe([(float(n), 1.0) for n in range(1000)])
    assert found is not None
    assert found.p99_ci is None


def test_an_interval_without_a_bound_says_so() -> None:
    """Of 50 kept out of a thousand the largest bounds nothing."""
    found = describe([(float(n), 20.0) for n in range(50)])
    assert found is not None
    assert found.p99_ci is not None
    assert found.p99_ci[0] <= found.p99
    assert found.p99_ci[1] is None


def _population(seed: int, size: int = 4000) -> list[float]:
    random = Random(seed)
    return [random.lognormvariate(0, 1) for _ in range(size)]


def _sampled(population: list[float], seed: int, always_from: float) -> list[Weighted]:
    """Every slow value with weight 1, and one in twenty of the others."""
    random = Random(-seed - 1)
    return [
        (value, 1.0 if value >= always_from else 20.0)
        for value in population
        if value >= always_from or random.random() < 1 / 20
    ]


def _misses(always_from: float, runs: int = 200) -> tuple[int, int]:
    """In how many runs the population's p99 lies below, and above, the interval."""
    low_misses = high_misses = 0
    for seed in range(runs):
        population = _population(seed)
        truth = quantile([(each, 1.0) for each in population], 0.99)
        found = describe(_sampled(population, seed, always_from))
        assert truth is not None
        assert found is not None
        assert found.p99_ci is not None
        low, high = found.p99_ci
        low_misses += truth < low
        high_misses += high is not None and truth > high
    return low_misses, high_misses


@pytest.mark.parametrize("always_from", [6.0, 14.0, float("inf")])
def test_the_weighted_p99_is_that_of_the_population_within_its_interval(always_from: float) -> None:
    """At least 93 % of 200 seeded populations: p99 is about 10; the tail kept, partly, or not."""
    assert sum(_misses(always_from)) <= 14


def test_keeping_the_slow_ones_makes_the_interval_narrow() -> None:
    """From about as many values: the interval is less than a third of that of a plain sample."""
    population = _population(1, 40_000)
    widths = []
    for always_from in (9.0, float("inf")):
        found = describe(_sampled(population, 1, always_from))
        assert found is not None
        assert found.p99_ci is not None
        low, high = found.p99_ci
        assert high is not None
        widths.append(high - low)
    assert 3 * widths[0] < widths[1]
