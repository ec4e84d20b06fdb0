"""How numbers and phases are put into words."""

from __future__ import annotations

from otel_llm.analysis.segments import NETWORK, UNACCOUNTED
from otel_llm.timeline import Phase

LETTERS = {
    Phase.RETRY.value: "R",
    NETWORK: "N",
    Phase.PREPROCESS.value: "T",
    Phase.LOAD.value: "L",
    Phase.QUEUE.value: "Q",
    Phase.PREFILL.value: "P",
    Phase.FIRST_TOKEN.value: "F",
    Phase.DECODE.value: "D",
    Phase.DELIVERY.value: "S",
    UNACCOUNTED: ".",
}
"""One letter for each phase, so that no colour is needed to tell them apart."""
TITLES = {Phase.FIRST_TOKEN.value: "first token"}
"""What people read, where that is not the name itself."""


def seconds(us: float) -> str:
    """A duration in its unit: `9.2 s`, `120 ms`, `0.3 ms`, `40 us`, `0`."""
    if us >= 99_950_000:
        return f"{us / 1e6:,.0f} s"
    if us >= 999_500:
        return f"{us / 1e6:.1f} s"
    if us >= 9_950:
        return f"{us / 1e3:.0f} ms"
    return f"{us / 1e3:.1f} ms" if us >= 50 else f"{us:.0f} us" if us >= 0.5 else "0"


def percent(share: float) -> str:
    """A share in whole percent; what is there is never 0 %, and what is missing never 100 %."""
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{share * 100:.0f} %"


def times(number: int, noun: str) -> str:
    """A number and its noun: `1 request`, `30,112 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
