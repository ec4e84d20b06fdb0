"""Weighted quantiles, and how far they can be trusted.

A value of weight w stands for w values that were seen. A quantile is the smallest value at or
below which at least that share of the weight lies: always one that was measured.

The interval is Woodruff's (1952): the error of the estimated distribution at the quantile, turned
back into values. Values are taken to be kept independently of each other, each with probability
1 / weight, so that one kept for certain adds no error; what is estimated is the quantile of all
that was seen. Near 1 the limits are Wilson's, since a plain error would reach beyond it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, sqrt

Weighted = tuple[float, float]
"""A value and its weight, which is at least 1."""
Z95 = 1.959963984540054
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Distribution:
    """Quantiles and mean in the unit of the values.

    `n_eff` is Kish's effective sample size: how many equally weighted values would tell as much.
    `p99_ci` are 95 % limits, there only if some weight is above 1; the upper one is None if
    nothing was kept that could bound it.
    """

    p50: float
    p95: float
    p99: float
    mean: float
    n_eff: float
    p99_ci: tuple[float, float | None] | None = None


def describe(values: Iterable[Weighted]) -> Distribution | None:
    """The distribution of weighted values, or None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    reach = _reach(ordered)
    mass = reach[-1]
    estimated = any(weight > 1 for _, weight in ordered)
    return Distribution(
        p50=_at(ordered, reach, 0.5),
        p95=_at(ordered, reach, 0.95),
        p99=_at(ordered, reach, 0.99),
        mean=fsum(value * weight for value, weight in ordered) / mass,
        n_eff=mass**2 / fsum(weight**2 for _, weight in ordered),
        p99_ci=_interval(ordered, reach, 0.99) if estimated else None,
    )


def quantile(values: Iterable[Weighted], q: float) -> float | None:
    """The *q* quantile of weighted values, or None if there are none."""
    ordered = sorted(values)
    return _at(ordered, _reach(ordered), q) if ordered else None


def _reach(ordered: Sequence[Weighted]) -> list[float]:
    """The weight at or below each value."""
    return list(accumulate(weight for _, weight in ordered))


def _at(ordered: Sequence[Weighted], reach: Sequence[float], q: float) -> float:
    return ordered[_index(reach, q)][0]


def _index(reach: Sequence[float], q: float) -> int:
    """The first value by which the share *q* of the weight is reached."""
    wanted = q * reach[-1] * (1 - _ROUNDING)  # 0.95 * 60 must not be more than 57
    return min(bisect_left(reach, wanted), len(reach) - 1)


def _interval(
    ordered: Sequence[Weighted], reach: Sequence[float], q: float
) -> tuple[float, float | None]:
    variance = _variance(ordered, reach, q)
    if variance <= 0:
        value = _at(ordered, reach, q)
        return value, value
    low, high = _wilson(q, q * (1 - q) / variance)
    top = _index(reach, high)
    bounded = top < len(ordered) - 1 or ordered[top][1] <= 1
    return _at(ordered, reach, low), ordered[top][0] if bounded else None


def _variance(ordered: Sequence[Weighted], reach: Sequence[float], q: float) -> float:
    """Of the share of weight at or below the quantile, as an estimate.

    Few values lie above it, or none. What those above add is taken from their expected weight and
    the mean weight from the quantile up, which is never nothing.
    """
    at, mass = _index(reach, q), reach[-1]
    below = fsum(weight * (weight - 1) for _, weight in ordered[: at + 1])
    tail = [weight for _, weight in ordered[at:]]
    spread = fsum(weight * (weight - 1) for weight in tail) / fsum(tail)
    return ((1 - q) ** 2 * below + q**2 * (1 - q) * mass * spread) / mass**2


def _wilson(share: float, n: float) -> tuple[float, float]:
    """95 % limits of a share that *n* independent values would have shown."""
    z2 = Z95**2 / n
    middle, half = share + z2 / 2, Z95 * sqrt(share * (1 - share) / n + z2 / (4 * n))
    return (middle - half) / (1 + z2), (middle + half) / (1 + z2)
