"""Spans that were lost: counted by reason, and told of once when it begins and once when over."""

from __future__ import annotations

import logging
from threading import Lock
from typing import Final

from otel_llm.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("otel_llm")
QUEUE_FULL: Final = "queue_full"
EXPORT_FAILED: Final = "export_failed"
REJECTED: Final = "rejected"
SHUTDOWN: Final = "shutdown"
REASONS: Final = (QUEUE_FULL, EXPORT_FAILED, REJECTED, SHUTDOWN)
QUIET_NS: Final = 10 * 10**9
"""So long nothing must be lost before it is over: a receiver that fails now and then is one
trouble, not many."""


class Losses:
    """Counts by reason; `settle` and `end` write the log, `add` never does."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """Begin at zero: in a forked child counts and lock are the parent's."""
        self._lock = Lock()
        self._counts = dict.fromkeys(REASONS, 0)
        self._before: dict[str, int] | None = None
        """The counts before the present trouble; None when there is none."""
        self._settled = self._told = dict(self._counts)
        self._last_ns = 0
        self._why = ""
        self._given_up = False

    @property
    def counts(self) -> dict[str, int]:
        """Spans lost since the process began, for every reason."""
        return dict(self._counts)

    def add(self, reason: str, spans: int, why: str = "") -> None:
        """Count *spans*; *why* may stand in the log and holds no secret."""
        with self._lock:
            if self._given_up and reason != SHUTDOWN:
                return
            self._counts[reason] += spans
            self._why = why or self._why

    def give_up(self, spans: int) -> None:
        """Count what is left at the end; a request that ends later is not counted again."""
        with self._lock:
            self._given_up = True
            self._counts[SHUTDOWN] += spans

    def settle(self, *, delivered: bool) -> None:
        """Write a line if losing has begun, or is over; called after each export."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            before, counts = self._before, dict(self._counts)
            if counts != self._settled:
                self._last_ns = now_ns
                if before is None:
                    self._before, self._told = self._settled, counts
            elif before is not None and delivered and now_ns - self._last_ns >= QUIET_NS:
                self._before, self._told = None, counts
            began, over = self._before if before is None else None, self._before is None
            self._settled = counts
        if began is not None:
            _log.error("%s; no further line until it is over", self._words(began, counts))
        elif before is not None and over:
            _log.warning("spans arrive again; meanwhile %s", self._words(before, counts, why=False))

    def end(self) -> None:
        """Write the last line, if spans were lost that no line has told of."""
        with self._lock:
            told, counts = self._told, dict(self._counts)
            since = self._settled if self._before is None else self._before
            self._before, self._settled, self._told = None, counts, counts
        if counts != told:
            _log.error("%s, until shutdown", self._words(since, counts))

    def _words(self, before: dict[str, int], now: dict[str, int], *, why: bool = True) -> str:
        new = {reason: now[reason] - before[reason] for reason in REASONS}
        parts = ", ".join(f"{reason} {spans}" for reason, spans in new.items() if spans)
        cause = f": {self._why}" if why and self._why else ""
        return f"{sum(new.values())} spans were lost ({parts}){cause}"
