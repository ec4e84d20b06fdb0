"""From rounds to costs, and from costs to ratios with their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from tests.benchmarks.clients.peers import PEERS, ROWS
from tests.benchmarks.clients.rounds import LARGE, SMALL, Cell, Rounds
from tests.benchmarks.report import Bound

SLACK = 2
"""A guarded ratio may be this many times its target: these machines are noisy."""


@dataclass(frozen=True)
class Costs:
    """Microseconds beyond the bare client of the same environment, one value per round."""

    chunk: list[float]
    request: list[float]

    @property
    def per_chunk(self) -> float:
        """The median of the slopes between a short and a long stream."""
        return median(self.chunk)

    @property
    def per_request(self) -> float:
        """The median of what a stream without chunks would cost."""
        return median(self.request)


def costs(measured: Rounds, cell: Cell) -> Costs:
    """What a row costs; of a bare client, all that it costs."""
    name, library, mode = cell
    chunk, request = _line(measured, cell)
    if not name.startswith("bare/"):
        bare = f"bare/{ROWS[name].environment}", library, mode
        bare_chunk, bare_request = _line(measured, bare)
        chunk = [a - b for a, b in zip(chunk, bare_chunk, strict=True)]
        request = [a - b for a, b in zip(request, bare_request, strict=True)]
    return Costs(chunk, request)


def _line(measured: Rounds, cell: Cell) -> tuple[list[float], list[float]]:
    """Slope and intercept of each round."""
    pairs = list(zip(measured.small[cell], measured.large[cell], strict=True))
    slopes = [(large - small) / (LARGE - SMALL) for small, large in pairs]
    return slopes, [small - SMALL * s for (small, _), s in zip(pairs, slopes, strict=True)]


def table(measured: Rounds) -> dict[str, Any]:
    """Every cell's costs with their quartiles, cheapest first, and the price of a clock read."""
    found = {
        cell: costs(measured, cell)
        for cell in measured.small
        if cell[0] == "bare/base" or cell[0] in ROWS
    }
    order = sorted(found, key=lambda cell: (*cell[1:], found[cell].per_chunk))
    return {
        "clock_read_ns": median(measured.clock_ns),
        "us": {
            "/".join(cell): {
                "per_chunk": _quartiles(found[cell].chunk),
                "per_request": _quartiles(found[cell].request),
            }
            for cell in order
        },
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    """Median, first and third quartile."""
    if len(values) < 2:
        return [round(values[0], 3)] * 3
    first, middle, third = quantiles(values, n=4)
    return [round(value, 3) for value in (middle, first, third)]


def lines(found: dict[str, Any]) -> list[str]:
    """The table as Markdown."""
    heads = ["| row | client | per request, µs | per chunk, µs |", "|---|---|---|---|"]
    rows = []
    for name, cell in found["us"].items():
        *row, library, mode = name.split("/")
        chunk, request = cell["per_chunk"], cell["per_request"]
        rows.append(
            f"| {'/'.join(row)} | {library}, {mode} | {request[0]:.0f} ({request[1]:.0f} to "
            f"{request[2]:.0f}) | {chunk[0]:.3f} ({chunk[1]:.3f} to {chunk[2]:.3f}) |"
        )
    return heads + rows


@dataclass(frozen=True)
class Target:
    """A ratio that is aimed at, of the sync and of the async client."""

    name: str
    sync: float
    later: float

    def bound(self, library: str, mode: str, value: float) -> tuple[Bound, dict[str, Any]]:
        """The guard of one cell, and how it stands to the target."""
        target = self.sync if mode == "sync" else self.later
        name = f"{self.name}; {library}, {mode}"
        kept = Bound(name, max(value, 0.0), SLACK * target)  # noise may make it negative
        return kept, {"name": name, "value": value, "target": target, "met": value <= target}


CLOCK_READS = Target("per chunk, clock reads", 4, 8)
LIKE_FOR_LIKE = Target("per chunk / the cheapest that records first token and gaps", 1 / 50, 1 / 50)
CHEAPEST = Target("per chunk / the cheapest of any kind", 1 / 3, 1 / 2)
BY_HAND = Target("per request / the same by hand", 1.5, 1.5)
CHEAPEST_REQUEST = Target("per request / the cheapest with a span and metrics", 1, 1)


def ratios(measured: Rounds) -> list[tuple[Bound, dict[str, Any]]]:
    """Ours against every target, where it and what it is compared with were measured."""
    found = []
    for name, library, mode in list(measured.small):
        if name == "ours":
            for target, value in _compared(measured, library, mode):
                found.append(target.bound(library, mode, value))
    return found


def _compared(measured: Rounds, library: str, mode: str) -> Iterable[tuple[Target, float]]:
    ours = costs(measured, ("ours", library, mode))
    yield CLOCK_READS, ours.per_chunk * 1000 / median(measured.clock_ns)
    peers = {
        name: costs(measured, (name, library, mode))
        for name in PEERS
        if (name, library, mode) in measured.small
    }
    alike = [cost.per_chunk for name, cost in peers.items() if library in ROWS[name].gaps]
    if alike:
        yield LIKE_FOR_LIKE, ours.per_chunk / min(alike)
    if peers:
        yield CHEAPEST, ours.per_chunk / min(cost.per_chunk for cost in peers.values())
    if ("by_hand", library, mode) in measured.small:
        hand = costs(measured, ("by_hand", library, mode))
        yield BY_HAND, ours.per_request / hand.per_request
    metered = [cost.per_request for name, cost in peers.items() if ROWS[name].metrics]
    if metered:
        yield CHEAPEST_REQUEST, ours.per_request / min(metered)
