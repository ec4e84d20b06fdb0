"""How late an event loop runs what is due, while requests are open on it."""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_left

from otel_llm.clock import Clock
from otel_llm.guard import guard

INTERVAL_NS = 10_000_000
"""How often the loop is asked; one asking costs about 5 us."""
MOST_KEPT = 1024


class LoopLag:
    """Asks one loop every 10 ms while a request is open, and keeps how late it answered.

    Of the answers only those are kept that no later one exceeds: to find the longest lag since
    some moment, the first one kept since then is enough.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self._now = clock.monotonic_ns
        self._open: set[int] = set()
        self._due = 0
        self._handle: asyncio.TimerHandle | None = None
        self._context = contextvars.Context()  # a timer must not keep the request's own alive
        self._at: list[int] = []
        self._lags: list[int] = []

    def begin(self, request: object) -> None:
        """Watch for *request* until `end` or `forget`."""
        if not self._open:
            self._at.clear()
            self._lags.clear()
            if self._handle is None or self._due <= self._now():
                self._ask_anew()  # what is overdue may be so because the loop was not running
        self._open.add(id(request))

    def end(self, request: object, since_ns: int) -> int:
        """The longest lag since then, nanoseconds; an answer that is overdue now counts."""
        self._open.discard(id(request))
        now = self._now()
        longest = min(now - self._due, now - since_ns)
        if self._at and self._at[-1] >= since_ns:
            longest = max(longest, self._since(since_ns))
        return max(0, longest)

    def _since(self, since_ns: int) -> int:
        longest = 0
        for place in range(bisect_left(self._at, since_ns), len(self._at)):
            within = min(self._lags[place], self._at[place] - since_ns)
            longest = max(longest, within)
            if within == self._lags[place]:
                break  # later ones are shorter
        return longest

    def forget(self, request: object) -> None:
        """Watch for *request* no more; doing so again changes nothing."""
        self._open.discard(id(request))

    def _ask_anew(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._ask()

    def _ask(self) -> None:
        self._due = self._now() + INTERVAL_NS
        self._handle = self.loop.call_later(INTERVAL_NS / 1e9, self._answer, context=self._context)

    def _answer(self) -> None:
        with guard("host.loop"):
            self._handle = None
            if self._open:
                now = self._now()
                self._keep(now, now - self._due)
                self._ask()

    def _keep(self, at: int, lag: int) -> None:
        while self._lags and self._lags[-1] <= lag:
            self._lags.pop()
            self._at.pop()
        self._at.append(at)
        self._lags.append(lag)
        if len(self._at) > MOST_KEPT:
            del self._at[0], self._lags[0]
