"""Calls that must not be made from within a run of the garbage collector.

The collector may run inside a lock of the SDK, which ending a span takes again. A bare thread needs
no lock to be started.
"""

from __future__ import annotations

import gc
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from typing import Any

_collecting = 0


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collecting  # noqa: PLW0603 - there is one collector in a process
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collection)


def collecting() -> bool:
    """Whether the garbage collector runs in this thread."""
    return _collecting == get_ident()


def aside(call: Callable[..., object], *given: Any) -> None:
    """Make *call* from a thread; here, if the interpreter is shutting down."""
    try:
        start_new_thread(call, given)
    except RuntimeError:
        call(*given)
