"""How far the clocks of two hosts can be apart, told by one request and its reply.

A request is sent before it is received, the first token is handed on before it is read, and the
last one before the reading ends. Each holds whatever the clocks say, so that the three bound how
far the far side's clock is ahead (the envelope of Cristian's method, 1989; NTP calls half its
width the distance). This is the only place where instants of two clocks meet, and what comes out
is a bound on their offset, never a duration.
"""

from __future__ import annotations

from typing import NamedTuple

from otel_llm.analysis.summary import RequestSpan
from otel_llm.timeline import Outcome, Phase

TOLERANCE_US = 1_000
"""A reader may have a chunk before the sender's `send` has returned and its clock is read."""
_ROUNDING_US = 1


class ClockOffset(NamedTuple):
    """By how much the clock of `inner`'s host is ahead of the clock of the side that called it.

    It is at most `high_us` and, where the reply tells enough, at least `low_us`: whole
    microseconds, negative if the clock is behind.
    """

    inner: RequestSpan
    low_us: int | None
    high_us: int

    @property
    def skewed(self) -> bool:
        """Whether the clocks cannot be the same: by them the inner side lies outside the outer."""
        ahead = self.low_us is not None and self.low_us > TOLERANCE_US
        return ahead or self.high_us < -TOLERANCE_US


def clock_offset(outer: RequestSpan, inner: RequestSpan) -> ClockOffset | None:
    """The bounds that *inner*, at the other end of *outer*'s network, gives.

    None if no offset fits: a clock was set meanwhile, or the inner side did not answer this call.
    """
    sent, received = _start(outer) + outer.us(Phase.RETRY), _start(inner)
    lows = []
    if outer.ttft_us is not None and inner.ttft_us is not None:
        handed_on = received + inner.ttft_us + inner.us(Phase.FIRST_TOKEN)
        lows.append(handed_on - (sent + outer.ttft_us))
    if outer.outcome is Outcome.OK:  # it has read to the end
        # The client has the last token by then, which need not be all that the server sends.
        last = received + inner.e2e_us - inner.us(Phase.DELIVERY)
        lows.append(last - (_start(outer) + outer.e2e_us))
    low = max(lows) - _ROUNDING_US if lows else None
    high = received - sent + _ROUNDING_US
    return None if low is not None and low > high else ClockOffset(inner, low, high)


def _start(side: RequestSpan) -> int:
    return (side.span.start_ns + 500) // 1000
