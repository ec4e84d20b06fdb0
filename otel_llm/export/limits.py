"""Ends for what would not end by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer


@contextmanager
def within(seconds: float, give_up: Callable[[], object]) -> Iterator[None]:
    """Call *give_up* from another thread if the block takes longer than *seconds*."""
    timer = Timer(seconds, give_up)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # the interpreter is ending; whoever ends it waits no longer than he says
        yield
        return
    try:
        yield
    finally:
        timer.cancel()
