"""Which request spans of one trace belong together: trees of request spans, whatever lies between.

Broken trees are mended without a guess: the same span twice counts once, a parent that is not
there makes a root, and a loop of parents is cut at its earliest span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_llm.analysis.spans import SpanRecord
from otel_llm.analysis.summary import RequestSpan, is_request_span, read_summary
from otel_llm.timeline import Side


@dataclass(slots=True, eq=False)
class Node:
    """One request span and the request spans right below it.

    `orphan` says that its parent span is not in the trace.
    """

    request: RequestSpan
    children: list[Node] = field(default_factory=list)
    orphan: bool = False

    @property
    def inner(self) -> list[Node]:
        """The sides of the same request right below: all but clients, which start anew."""
        return [each for each in self.children if each.request.side is not Side.CLIENT]

    def owned(self) -> Iterator[Node]:
        """This span and every span of the same request below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.inner


class Forest(NamedTuple):
    """The request spans of one trace: the outermost ones, and all."""

    roots: list[Node]
    nodes: list[Node]


def forest(spans: Sequence[SpanRecord]) -> Forest:
    """The trees of request spans of one trace."""
    spans = _distinct(spans)
    by_id: dict[str, int] = {}
    for index, span in enumerate(spans):
        by_id.setdefault(span.span_id, index)
    nodes = {i: Node(read_summary(each)) for i, each in enumerate(spans) if is_request_span(each)}
    parents = _request_parents(spans, by_id, nodes.keys())
    for index, node in nodes.items():
        parent = spans[index].parent_span_id
        node.orphan = bool(parent) and parent not in by_id
    return Forest(_linked(nodes, parents), list(nodes.values()))


def _distinct(spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """Without spans delivered twice; two different ones may share an id."""
    seen: dict[str, list[SpanRecord]] = {}
    for span in spans:
        same = seen.setdefault(span.span_id, [])
        if span not in same:
            same.append(span)
    return [span for same in seen.values() for span in same]


def _request_parents(
    spans: Sequence[SpanRecord], by_id: dict[str, int], requests: Iterable[int]
) -> dict[int, int | None]:
    """For each request span the nearest one above it, by index.

    Every span is walked once: what is found is noted for all on the way.
    """
    wanted = set(requests)
    nearest: dict[int, int | None] = {}
    for start in wanted:
        way, index = [], by_id.get(spans[start].parent_span_id or "")
        while index is not None and index not in wanted and index not in nearest:
            nearest[index] = None  # until it is known; in a loop it stays so
            way.append(index)
            index = by_id.get(spans[index].parent_span_id or "")
        found = index if index is None or index in wanted else nearest[index]
        for each in way:
            nearest[each] = found
        nearest[start] = found  # of itself, too: `_linked` cuts every loop
    return nearest


def _linked(nodes: dict[int, Node], parents: dict[int, int | None]) -> list[Node]:
    """Children put below their parents; the roots are returned."""
    below: dict[int | None, list[int]] = {}
    for index in sorted(nodes, key=lambda each: nodes[each].request.span.start_ns):
        below.setdefault(parents[index], []).append(index)
    roots: list[Node] = []
    placed: set[int] = set()
    waiting = below.get(None, [])
    by_start = (index for indices in below.values() for index in indices)
    rest = sorted(by_start, key=lambda each: nodes[each].request.span.start_ns)
    for root in (*waiting, *rest):
        if root not in placed:  # of the rest, only a loop has not been reached from a root
            placed.add(root)
            roots.append(nodes[root])
            _place_below(root, nodes, below, placed)
    return roots


def _place_below(
    root: int, nodes: dict[int, Node], below: dict[int | None, list[int]], placed: set[int]
) -> None:
    open_ = [root]
    while open_:
        index = open_.pop()
        for child in below.get(index, ()):
            if child not in placed:
                placed.add(child)
                nodes[index].children.append(nodes[child])
                open_.append(child)
