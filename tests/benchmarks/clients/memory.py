"""What an open stream holds, how often garbage is collected, and whose object is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.clients.layers import LIBRARIES, MODES
from tests.benchmarks.clients.peers import ROWS
from tests.benchmarks.clients.rounds import Worker, libraries, worker
from tests.benchmarks.report import Bound

AT = (16, 1024, 2040, 4096)
"""Chunks read so far; the third is just before a recorder begins to fold its stamps."""
STREAMS = 4
MOST_KB, GROWTH_KB = 5.0, 1.0
COLLECTED_CHUNKS, COLLECTED_STREAMS = 1024, 10


def held(running: Mapping[str, Worker]) -> dict[str, dict[str, list[float]]]:
    """What each open stream holds beyond the bare client's, kB after each number of chunks."""
    raw = {
        name: {
            library: asked.ask("held", library=library, streams=STREAMS, at=list(AT))
            for library in libraries(name)
        }
        for name, asked in running.items()
    }
    return {
        name: {
            library: [
                round((held - bare) / 1000, 2)
                for held, bare in zip(
                    values, raw[f"bare/{ROWS[name].environment}"][library], strict=True
                )
            ]
            for library, values in of.items()
        }
        for name, of in raw.items()
        if name in ROWS
    }


def collected(running: Mapping[str, Worker]) -> dict[str, dict[str, list[int]]]:
    """Garbage collections by generation during ten streams of 1,024 chunks."""
    return {
        name: {
            library: asked.ask(
                "collections", library=library, chunks=COLLECTED_CHUNKS, times=COLLECTED_STREAMS
            )
            for library in libraries(name)
        }
        for name, asked in running.items()
    }


def bounds(kept: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[Bound, dict[str, Any]]]:
    """Ours against the targets: what is held in all, and by how much it grows."""
    found = []
    for library, values in kept.get("ours", {}).items():
        growth = max(values) - values[0]
        for what, value, target in (
            ("kB per open stream, at most", max(values), MOST_KB),
            ("kB by which an open stream grows", growth, GROWTH_KB),
        ):
            name = f"{what}; {library}"
            about = {"name": name, "value": value, "target": target, "met": value <= target}
            found.append((Bound(name, max(value, 0.0), 2 * target), about))
    return found


def own_objects() -> Bound:
    """How many calls do not return the client's own object when there is nothing to record."""
    with worker("ours_off", "stub") as asked:
        own = [asked.ask("own", library=lib, mode=mode) for lib in LIBRARIES for mode in MODES]
    return Bound("calls that return another object with everything off", own.count(False), 0)
