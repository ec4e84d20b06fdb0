"""A server process that ends with this one, and the log of what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TypeVar

from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.demo.keeper import GRACE_S
from otel_llm.errors import OtelLLMError

Found = TypeVar("Found")
TAIL_LINES = 15
POLL_S = 0.05


class DemoError(OtelLLMError):
    """The demo could not run; the message says what to do, or ends with a server's last words."""


class Child:
    """One server process under its keeper, in a process group of its own.

    A Ctrl-C in the terminal does not reach it; it ends when `stop` is called, and also when this
    process is gone in whatever way.

    Args:
        name: What messages call it.
        command: Its command line.
        log: Where standard output and error go.
        env: Its whole environment.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        keeper = [sys.executable, "-m", "otel_llm.demo.keeper", *command]
        with log.open("wb") as output:
            self._keeper = subprocess.Popen(  # noqa: S603 - our own command
                keeper,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._keeper.poll() is None

    def wait_for(self, find: Callable[[], Found | None], limit_s: float) -> Found:
        """Ask *find* again and again until it has found something.

        Raises:
            DemoError: The server has ended, or *limit_s* seconds have passed.
        """
        deadline_s = SYSTEM_CLOCK.monotonic() + limit_s
        while (found := find()) is None:
            if not self.running:
                raise self.failed("ended before it was ready")
            if SYSTEM_CLOCK.monotonic() > deadline_s:
                raise self.failed(f"was not ready after {limit_s:g} s")
            Event().wait(POLL_S)
        return found

    def check(self) -> None:
        """Raises `DemoError` if it has ended."""
        if not self.running:
            raise self.failed("has ended")

    def failed(self, what: str) -> DemoError:
        """The error that says *what* happened, with the last lines of the log."""
        return DemoError(f"{self.name} {what}. Its last words:\n{self.tail()}")

    def said(self) -> str:
        """The whole log."""
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(f"  {line}" for line in self.said().splitlines()[-TAIL_LINES:])

    def stop(self) -> None:
        """End it and all that it has started; a second call does nothing."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(GRACE_S + 1)
        except subprocess.TimeoutExpired:
            os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()


class ChildTarget:
    """A target that runs in a child process, once it was started."""

    _child: Child | None = None

    def check(self) -> None:
        """Raises `DemoError` with the tail of its log if it has ended."""
        if self._child is not None:
            self._child.check()

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop()
