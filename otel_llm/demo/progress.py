"""How far the demo is: a bar on standard error, if that is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Progress:
    """A line with a bar while used as a `with` block; nothing in a pipe."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, visible=False, count="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, what: str) -> None:
        """Something of unknown length begins."""
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None, count="")

    def requests(self, ended: int, of: int) -> None:
        """So many requests have ended."""
        count = f"{ended} of {of} requests"
        self._bar.update(self._task, completed=ended, total=of, count=count)
