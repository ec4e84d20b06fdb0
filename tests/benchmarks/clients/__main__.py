"""Ours beside its peers in front of the openai and ollama clients, interleaved in one run.

    python -m tests.benchmarks.clients [--rounds N] [--layer stub|replay] [--peers a,b]

Thread CPU, less that of the bare client of the same environment in the same round: per chunk is the
slope between streams of 16 and 1,024 chunks, per request what is left of the short one. Ratios are
taken in the layer `stub`, where they can be seen; `replay` shows what is left of them in a whole
client. Without `--layer` both are measured, and memory and garbage collections besides.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tests.benchmarks.clients import figures, memory
from tests.benchmarks.clients.layers import LAYERS
from tests.benchmarks.clients.peers import PEERS, ROWS
from tests.benchmarks.clients.rounds import Rounds, workers
from tests.benchmarks.report import Bound, write

FEWEST_ROUNDS = 9
"""Below a microsecond, fewer read two or three times too high."""
Kept = list[tuple[Bound, dict[str, Any]]]


def main() -> int:
    """Measure, print the tables, and check the bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layer", choices=LAYERS)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    given = parser.parse_args()
    if unknown := set(given.peers) - set(ROWS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    names = list(dict.fromkeys(["ours", "by_hand", *given.peers]))
    result: dict[str, Any] = {"rounds": given.rounds, "enough": given.rounds >= FEWEST_ROUNDS}
    kept: Kept = []
    for layer in LAYERS if given.layer is None else (given.layer,):
        found, bounds = measured(names, layer, given.rounds)
        result[layer] = found
        kept += bounds
    result["targets"] = [about for _, about in kept]
    for about in result["targets"]:
        verdict = "met   " if about["met"] else "missed"
        print(f"{verdict} {about['name']}: {about['value']:.3f} (target {about['target']:.3g})")
    return write("clients", result, [*(bound for bound, _ in kept), memory.own_objects()])


def measured(names: list[str], layer: str, rounds: int) -> tuple[dict[str, Any], Kept]:
    """The figures of one layer, and ours against the targets that are taken in it."""
    with workers(names, layer) as running:
        costs = Rounds(running)
        costs.measure(rounds)
        found = figures.table(costs)
        print("", f"## {layer}", "", *figures.lines(found), "", sep="\n")
        if layer == "stub":
            return found, figures.ratios(costs)
        found["kb_per_open_stream"] = held = memory.held(running)
        found["garbage_collections"] = memory.collected(running)
    for row, of in held.items():
        print(f"{row}: kB per open stream after {memory.AT} chunks: {of}")
    return found, memory.bounds(held)


if __name__ == "__main__":
    sys.exit(main())
