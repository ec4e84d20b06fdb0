"""Start a server process, wait until it is ready, and stop it with all its children."""

from __future__ import annotations

import atexit
import operator
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.services import web

T = TypeVar("T")
Probe = Callable[[], bool]


STARTED: list[Service] = []
"""All servers of this process that run, and those that have ended in the test under way."""


class ServiceError(RuntimeError):
    """A server died or was late; the message ends with the tail of its log."""


class Service:
    """One server process, which leads a process group of its own."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start the command; `env` is added to the environment of this process."""
        self.log = log
        self.command = [str(word) for word in command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        STARTED.append(self)
        # The group would outlive a test run that ends without a call of stop().
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """The process id, which is the process group's id as well."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None and not self._ended()

    def wait_ready(self, ready: str | Probe, *, limit: float) -> Self:
        """Wait until a URL answers 200 or a probe returns true; stop the server if neither does."""
        probe = answers(ready) if isinstance(ready, str) else ready
        deadline = time.monotonic() + limit
        while not probe():
            if not self.running:
                raise self._failed("ended before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready after {limit:g} s")
            time.sleep(0.05)
        return self

    def wait(self, *, limit: float) -> int:
        """Wait until the process ends by itself and return its exit status."""
        poll(lambda: self.running, operator.not_, limit=limit)
        return self.stop()

    def stop(self, grace: float = 15.0) -> int:
        """End the server and return its exit status; a second call does nothing."""
        atexit.unregister(self.stop)
        if self._process.returncode is None:
            # Only the leader is asked, as a supervisor would do: it ends its children in order.
            # Popen's own method would reap it.
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while not self._ended() and time.monotonic() < deadline:
                time.sleep(0.02)
            # The leader is not reaped yet, so the group's id cannot belong to anything else.
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        """Return the running server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()

    def _ended(self) -> bool:
        """Whether the process ended, asked without reaping it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def _failed(self, what: str) -> ServiceError:
        """Stop the server and describe what went wrong."""
        status = self.stop(grace=5.0)
        name = " ".join(self.command)
        return ServiceError(f"{name} {what} (exit status {status})\n{self.tail()}")


def free_ports(count: int) -> list[int]:
    """Return distinct ports of 127.0.0.1 that nothing listens on."""
    with ExitStack() as stack:
        # All sockets stay open until the last is bound, or a port might come twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    return free_ports(1)[0]


def answers(url: str) -> Probe:
    """Return a probe for a URL that answers 200."""

    def probe() -> bool:
        try:
            return web.request(url, timeout=5.0).status == 200
        except OSError:
            return False

    return probe


def listening(*ports: int) -> Probe:
    """Return a probe for ports of 127.0.0.1 that all accept connections."""

    def probe() -> bool:
        try:
            for port in ports:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            return False
        return True

    return probe


def poll(read: Callable[[], T], accept: Callable[[T], bool], *, limit: float) -> T:
    """Read again and again until a value is accepted, and return that value."""
    deadline = time.monotonic() + limit
    while not accept(found := read()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {limit:g} s: {str(found)[:2000]}")
        time.sleep(0.05)
    return found
