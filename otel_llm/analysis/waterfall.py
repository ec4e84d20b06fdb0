"""Bars as runs of terminal cells: one request's time on one axis, in any width. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_llm.analysis.segments import Placed
from otel_llm.analysis.words import seconds

_STEPS = (1, 2, 5)
_TICK_CELLS = 9
"""A tick's label needs no more, with a blank beside it."""


class Run(NamedTuple):
    """Cells of one phase, or blank ones if `name` is None."""

    name: str | None
    cells: int


def runs(stretches: Iterable[Placed], e2e_us: int, width: int, *, least: int = 0) -> Iterator[Run]:
    """*stretches*, in order, on an axis of *width* cells for *e2e_us*.

    Both ends are rounded, so that neighbours meet; each has at least *least* cells, which may
    push the next one. What lies beyond the axis is cut.
    """
    at = 0
    for each in stretches:
        start = max(at, min(_cell(each.start_us, e2e_us, width), width - least))
        end = min(width, max(_cell(each.start_us + each.us, e2e_us, width), start + least))
        if end > start:
            if start > at:
                yield Run(None, start - at)
            yield Run(each.name, end - start)
            at = end


def axis(e2e_us: int, width: int) -> str:
    """A ruler with a label at each round time: `|0        |2.0 s    |4.0 s`."""
    step = _step(e2e_us, max(1, width // _TICK_CELLS))
    line = ""
    for at in range(0, e2e_us + 1, step):
        label, cell = f"|{seconds(at)}", _cell(at, e2e_us, width)
        if cell + len(label) <= width:
            line = line.ljust(cell) + label
    return line


def _cell(us: int, e2e_us: int, width: int) -> int:
    return (2 * us * width + e2e_us) // (2 * e2e_us) if e2e_us else 0


def _step(e2e_us: int, most: int) -> int:
    """The smallest round time of which no more than *most* fit."""
    ten = 1
    while True:
        for each in _STEPS:
            if e2e_us <= each * ten * most:
                return each * ten
        ten *= 10
