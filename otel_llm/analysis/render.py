"""The analysis on a terminal: outcomes, the ledger of phases, the slowest request, the sentence.

Phases are told apart by a letter and by a colour (from the palettes of Okabe and Ito, and of Tol,
made for colour-blind readers). Without colours the letters fill the bars; nothing but ASCII is
drawn, so every encoding will do. Rich is imported where it is used (`pip install 'otel-llm[cli]'`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from otel_llm.analysis.breakdown import Analysis
from otel_llm.analysis.quantiles import Distribution
from otel_llm.analysis.requests import Request
from otel_llm.analysis.segments import NETWORK, UNACCOUNTED, Lane, placed
from otel_llm.analysis.sentence import sentence
from otel_llm.analysis.waterfall import Run, axis, runs
from otel_llm.analysis.words import LETTERS, TITLES, listed, percent, seconds, times
from otel_llm.timeline import Phase

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDEST = 140
_WIDE = 100
_LEFT = 31
"""Cells before a bar: letter, phase, duration, share."""
_COLOURS = {
    Phase.RETRY.value: "white on #d55e00",
    NETWORK: "white on #0072b2",
    Phase.PREPROCESS.value: "black on #f0e442",
    Phase.LOAD.value: "black on #cc79a7",
    Phase.QUEUE.value: "black on #e69f00",
    Phase.PREFILL.value: "black on #56b4e9",
    Phase.FIRST_TOKEN.value: "white on #882255",
    Phase.DECODE.value: "black on #009e73",
    Phase.DELIVERY.value: "black on #dddddd",
    UNACCOUNTED: "white on #666666",
}


def render(analysis: Analysis, console: Console | None = None) -> None:
    """Print *analysis*; to standard output if no console is given."""
    from rich.console import Console

    page = _Page(console or Console())
    page.counts(analysis)
    if analysis.ok:
        page.ledger(analysis)
        page.slowest(analysis.ok[0])
    page.line(sentence(analysis), "bold")


class _Page:
    """A console, and what it can show."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, WIDEST)
        self._bar_cells = max(20, self._width - _LEFT - (11 if self._width >= _WIDE else 0))
        self._coloured = (
            console.is_terminal and not console.no_color and console.color_system is not None
        )

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph, wrapped."""
        from rich.text import Text

        self._console.print(
            Text(self._shown(text), style), width=self._width, highlight=False, overflow="fold"
        )

    def counts(self, analysis: Analysis) -> None:
        """How many requests there were, how they ended, and what is not in the figures."""
        found = analysis.all
        ended = [f"{n:,} {name}" for name, n in found.outcomes.items() if n]
        self.line("Outcomes", "bold")
        self.line(f"{times(found.requests, 'request')}{': ' if ended else ''}{', '.join(ended)}")
        estimated = found.estimated != found.requests
        if estimated:
            self.line(f"They stand for about {found.estimated:,.0f} requests that were seen.")
            if not analysis.weighted:
                self.line("Some have no sampling weight, and count once.", "dim")
        left_out = [
            times(n, f"{why} request")
            for n, why in ((analysis.invalid, "contradictory"), (analysis.incomplete, "incomplete"))
            if n
        ]
        if left_out:
            self.line(f"Left out: {listed(left_out)}.")
        if found.skewed:
            where = times(found.skewed, "request")
            self.line(f"In {where} the hosts' clocks disagree; no duration depends on them.")
        self.line()

    def ledger(self, analysis: Analysis) -> None:
        """Quantiles of latencies and phases, and the share of each phase."""
        found = analysis.all
        bounded = any(each and each.p99_ci for each in found.latency.values())
        table = self._table(bounded)
        for name, latency in found.latency.items():
            if latency is not None:
                self._add(table, "", name.upper(), latency, bounded)
        table.add_section()
        table.add_row()
        for name, phase in found.phases.items():
            if phase.times is not None:
                title = TITLES.get(name, name)
                self._add(table, name, title, phase.times, bounded, phase.share or 0.0)
        self.line(f"Where the time went, in {found.outcomes['ok']:,} that ended ok", "bold")
        self._console.print(table)
        self.line()

    def _table(self, bounded: bool) -> Table:
        from rich.table import Table

        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        # Cropped where the terminal is too narrow: the mark of an ellipsis is not ASCII.
        table.add_column("", width=1)
        table.add_column("", width=12, no_wrap=True, overflow="crop")
        for title in ("p50", "p95", "p99", *(("95 % limits",) if bounded else ()), "mean"):
            table.add_column(title, justify="right", no_wrap=True, min_width=7, overflow="crop")
        table.add_column("share", justify="right", no_wrap=True, min_width=5, overflow="crop")
        if not bounded or self._width >= _WIDE:
            table.add_column("", no_wrap=True, overflow="crop")
        return table

    def _add(
        self,
        table: Table,
        name: str,
        title: str,
        found: Distribution,
        bounded: bool,
        share: float | None = None,
    ) -> None:
        figures = [seconds(us * 1e6) for us in (found.p50, found.p95, found.p99)]
        limits = [_limits(found)] if bounded else []
        end = [seconds(found.mean * 1e6), "" if share is None else percent(share)]
        cells = round((share or 0.0) * (32 if self._width >= _WIDE else 20))
        bar = [] if bounded and self._width < _WIDE else [self._bar([Run(name, cells)])]
        table.add_row(self._key(name), title, *figures, *limits, *end, *bar)

    def slowest(self, request: Request) -> None:
        """One request as a waterfall: each side as it saw itself, then everything in its order."""
        model = f" {request.model}" if request.model else ""
        title = f"The slowest request: {seconds(request.e2e_us)}{model}"
        trace = request.outermost.span.trace_id[:32]
        self.line(title[: self._width - 1], "bold")
        self.line(f"trace {trace}", "dim")
        self._row("", "", "", "", axis(request.e2e_us, self._bar_cells))
        for lane in request.lanes:
            self._row("", lane.side.value, "", "", self._lane(lane, request.e2e_us))
        self.line()
        for each in placed(request.segments):
            bar = self._bar(runs([each], request.e2e_us, self._bar_cells, least=1))
            share = percent(each.us / request.e2e_us)
            known = each.source.value if each.source and self._width >= _WIDE else ""
            title = TITLES.get(each.name, each.name)
            self._row(each.name, title, seconds(each.us), share, bar, known)
        self.line()

    def _lane(self, lane: Lane, e2e_us: int) -> Text:
        return self._bar(runs(placed(lane.segments, lane.start_us), e2e_us, self._bar_cells))

    def _row(
        self, name: str, title: str, us: str, share: str, bar: Text | str, known: str = ""
    ) -> None:
        from rich.text import Text

        row = Text.assemble(self._key(name), f" {title:<12} {us:>8} {share:>5}  ")
        row.append(bar)
        if known:
            row.pad_right(_LEFT + self._bar_cells - len(row) + 1)
            row.append(known, "dim")
        self._console.print(row, no_wrap=True, overflow="crop", highlight=False)

    def _key(self, name: str) -> Text:
        from rich.text import Text

        return Text(LETTERS.get(name, " "), _COLOURS[name] if name and self._coloured else "")

    def _bar(self, cells: Iterable[Run]) -> Text:
        """Coloured cells with a letter where each run begins; without colours letters only."""
        from rich.text import Text

        bar = Text()
        for name, length in cells:
            letter = LETTERS.get(name or "", " ")
            if name and self._coloured:
                bar.append(letter.ljust(length)[:length], _COLOURS[name])
            else:
                bar.append(letter * length)
        return bar

    def _shown(self, text: str) -> str:
        """*text* without what a terminal would obey, in characters that it can show."""
        plain = "".join(each if each.isprintable() else "?" for each in text)
        return plain.encode(self._console.encoding, "replace").decode(self._console.encoding)


def _limits(found: Distribution) -> str:
    if found.p99_ci is None:
        return ""
    low, high = found.p99_ci
    return f"{seconds(low * 1e6)}..{'?' if high is None else seconds(high * 1e6)}"
