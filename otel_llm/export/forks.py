"""What a forked child must make anew: threads, locks, sockets and queues are its parent's.

Python's own hook covers `os.fork`, `multiprocessing` and servers that load before they fork. A
fork by a C library runs no hook; it is noticed by the process id at the next span.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Protocol

from otel_llm.guard import guard


class Follower(Protocol):
    """Something with threads or sockets."""

    def after_fork(self) -> None:
        """Begin anew in a child; nothing of the parent may be waited for."""

    def shutdown(self) -> None:
        """Send what is left; the process ends."""


_followers: list[weakref.ref[Follower]] = []
_pid = os.getpid()
_told = False
_ends_known_in = 0


def follow(follower: Follower) -> None:
    """Let *follower*, which is held weakly, take part in forks and exits from now on."""
    _followers[:] = [each for each in _followers if each() is not None]
    _followers.append(weakref.ref(follower))
    _end_with_multiprocessing()


def renew() -> None:
    """Begin anew if this process is a child that has not done so."""
    global _pid  # noqa: PLW0603 - one process, one id
    if _pid == os.getpid():
        return
    _pid = os.getpid()
    if _followers:
        _end_with_multiprocessing()
    for reference in _followers:
        if (follower := reference()) is not None:
            with guard("fork"):
                follower.after_fork()


def _end_with_multiprocessing() -> None:
    """Shut followers down when a child of `multiprocessing` ends: it skips `atexit`.

    A child forgets the finalizers that were there before its own work begins, hence both: one
    for a child that is at work, and a word to every child that begins.
    """
    global _told  # noqa: PLW0603 - children inherit it, with what was told
    util, process = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "process"))
    if util is None or process is None:
        return
    if not _told:
        _told = True
        util.register_after_fork(_shutdown_all, _finalize)
    if process.parent_process() is not None and _ends_known_in != os.getpid():
        _finalize()


def _finalize(_registered: object = None) -> None:
    global _ends_known_in  # noqa: PLW0603
    _ends_known_in = os.getpid()
    sys.modules["multiprocessing.util"].Finalize(None, _shutdown_all, exitpriority=100)


def _shutdown_all() -> None:
    """The last one made comes first, as with `atexit`."""
    for reference in reversed(_followers):
        if (follower := reference()) is not None:
            with guard("multiprocessing.exit"):
                follower.shutdown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew)
