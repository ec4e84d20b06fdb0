"""Ids that differ between processes whatever the application does with `random`."""

from __future__ import annotations

import os
from random import Random

from opentelemetry.sdk.trace.id_generator import IdGenerator


class ProcessIdGenerator(IdGenerator):
    """Random ids from a source of one's own, seeded anew in each process.

    The SDK draws from the global source. Workers that all call `random.seed(0)`, as training and
    serving code likes to, and children of a fork that runs no hooks, would share their trace ids.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._source = Random()  # noqa: S311 - ids need not be secret

    def generate_span_id(self) -> int:
        """64 random bits, not all zero."""
        return self._bits(64)

    def generate_trace_id(self) -> int:
        """128 random bits, not all zero."""
        return self._bits(128)

    def is_trace_id_random(self) -> bool:
        """All bits are random, so the flag of W3C level 2 is set."""
        return True

    def _bits(self, count: int) -> int:
        if self._pid != os.getpid():
            self._source, self._pid = Random(), os.getpid()  # noqa: S311
        return self._source.getrandbits(count) or self._bits(count)
