"""The two clocks of a process, and the anchor that ties them together.

Instants are integer nanoseconds on one wall timeline; durations come from the monotonic clock
alone. A monotonic reading becomes an instant only through an `Anchor`, so a step of the wall
clock moves where a request lies and never how long it took.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

YEAR_2000_NS = 946_684_800_000_000_000
"""Instants before this are not wall-clock times (a monotonic reading taken for one, or zero)."""
YEAR_2200_NS = 7_258_118_400_000_000_000
"""Instants after this are not wall-clock times either; the value still fits 63 bits."""


class Clock(Protocol):
    """Source of both kinds of time; tests pass one they can move."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back; its zero means nothing."""

    def monotonic(self) -> float:
        """Seconds of the same clock, for the hot path of streams: floats subtract faster."""


class SystemClock:
    """The clocks of this process."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()


class Anchor(NamedTuple):
    """A wall and a monotonic reading taken together in one process, both in nanoseconds."""

    wall_ns: int
    monotonic_ns: int

    @classmethod
    def take(cls, clock: Clock = SYSTEM_CLOCK) -> Anchor:
        """Read both clocks now; the wall part is rounded to whole microseconds.

        Rounding here makes the exported start of a span and the integers computed from it agree.
        """
        wall = (clock.wall_ns() + 500) // 1000 * 1000
        return cls(wall, clock.monotonic_ns())

    def instant(self, monotonic_ns: int) -> int:
        """The wall-timeline instant, in nanoseconds, of a monotonic reading of this process."""
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)

    def monotonic(self, instant_ns: int) -> int:
        """The monotonic reading that `instant` would turn into *instant_ns*."""
        return self.monotonic_ns + (instant_ns - self.wall_ns)


def is_instant(value: object) -> bool:
    """True for an integer that can be a wall-clock time in nanoseconds."""
    return type(value) is int and YEAR_2000_NS <= value <= YEAR_2200_NS
