"""Workers of all peers side by side, asked in rounds, each round in another order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from tests.benchmarks.clients import environments
from tests.benchmarks.clients.layers import LIBRARIES, MODES
from tests.benchmarks.clients.peers import ROWS, row
from tests.benchmarks.report import ROOT

SMALL, LARGE = 16, 1024
TIMES = {SMALL: 20, LARGE: 3}
"""Streams in a batch, by their number of chunks."""
Cell = tuple[str, str, str]
"""Row, library, mode."""


class WorkerError(RuntimeError):
    """A worker ended; the message holds the end of what it wrote."""


class Worker:
    """A running worker."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Any) -> None:
        self.name = name
        self._process = process
        self._log = log

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer to a question; raises `WorkerError` if the worker fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": question, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise WorkerError(f"{self.name} ended: {self._log.read()[-1500:]}")
        return json.loads(line)


@contextmanager
def worker(
    name: str, layer: str, *options: str, environment: str | None = None
) -> Iterator[Worker]:
    """Start a worker in its environment, and end it."""
    python = environments.python(environment or row(name).environment)
    unset = ("OTEL_", "PYTHON")  # nothing of the caller's settings
    variables = {key: v for key, v in os.environ.items() if not key.startswith(unset)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [python, "-m", "tests.benchmarks.clients.worker", name, layer, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**variables, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        with process:
            try:
                started = Worker(name, process, log)
                started.answer()
                yield started
            finally:
                process.kill()


@contextmanager
def workers(names: Sequence[str], layer: str) -> Iterator[dict[str, Worker]]:
    """A worker for each row, and beside it a bare one for each environment, `bare/NAME`."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(worker(name, layer)) for name in names}
        for each in {row(name).environment for name in names}:
            bare = stack.enter_context(worker("bare", layer, environment=each))
            found[f"bare/{each}"] = bare
        if "by_hand" in found:
            teach(found["by_hand"])
        yield found


def teach(hand: Worker) -> None:
    """Give by hand the constants of what ours writes."""
    with worker("ours", "stub", "--in-memory") as seen:
        for library in LIBRARIES:
            hand.ask("learn", library=library, seen=seen.ask("written", library=library))


def libraries(name: str) -> tuple[str, ...]:
    """The clients that a worker is asked about."""
    return LIBRARIES if name.startswith("bare/") else ROWS[name].libraries


class Rounds:
    """Batches of all workers: `small` and `large` hold microseconds per stream, one per round."""

    def __init__(self, running: Mapping[str, Worker]) -> None:
        self._running = running
        self.small: dict[Cell, list[float]] = defaultdict(list)
        self.large: dict[Cell, list[float]] = defaultdict(list)
        self.clock_ns: list[float] = []

    def measure(self, rounds: int) -> None:
        """Ask everything *rounds* times, and once more first, for warming."""
        for number in range(rounds + 1):
            order = list(self._running)
            random.shuffle(order)
            for name in order:
                self._ask(name)
            if number == 0:
                for kept in (self.small, self.large, self.clock_ns):
                    kept.clear()
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)

    def _ask(self, name: str) -> None:
        asked = self._running[name]
        for library in libraries(name):
            for mode in MODES:
                for chunks, kept in ((SMALL, self.small), (LARGE, self.large)):
                    took = asked.ask(
                        "cpu", library=library, mode=mode, chunks=chunks, times=TIMES[chunks]
                    )
                    kept[name, library, mode].append(median(took) / 1000)
        if name == "bare/base":
            self.clock_ns.append(asked.ask("clock"))
