"""Short ways to write evidence down and to read timelines; times are milliseconds from BASE_NS."""

from __future__ import annotations

from typing import Any

from otel_llm.timeline import (
    Ending,
    Evidence,
    Mark,
    OutputTimes,
    Phase,
    Sequence,
    Side,
    Source,
    Stamp,
    Timeline,
    Tokens,
)

BASE_NS = 1_764_460_800_000_000_000
"""The wall-clock instant at which the requests of these tests begin."""
MONOTONIC_NS = 81_233_900_000_000
"""What the monotonic clock reads at that instant."""

COMPLETE = Ending(end_record=True)


class FakeClock:
    """Two clocks that move only when told; the wall can also step."""

    def __init__(self, wall_ns: int = BASE_NS, monotonic_ns: int = MONOTONIC_NS) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, milliseconds: float) -> None:
        self._wall_ns += ns(milliseconds)
        self._monotonic_ns += ns(milliseconds)

    def step_wall(self, milliseconds: float) -> None:
        self._wall_ns += ns(milliseconds)


def ns(milliseconds: float) -> int:
    """Milliseconds in nanoseconds, the unit of evidence."""
    return round(milliseconds * 1e6)


def us(milliseconds: float) -> int:
    """Milliseconds in microseconds, the unit of timelines."""
    return round(milliseconds * 1e3)


def at(milliseconds: float, source: Source = Source.OBSERVED) -> Stamp:
    """The stamp of an instant of the request."""
    return Stamp(BASE_NS + ns(milliseconds), source)


def marks(source: Source = Source.OBSERVED, **times_ms: float) -> dict[Mark, Stamp]:
    """Marks by their names in lower case."""
    return {Mark[name.upper()]: at(time, source) for name, time in times_ms.items()}


def durations(**lengths_ms: float) -> dict[Phase, int]:
    """Stated durations by phase."""
    return {Phase(name): ns(length) for name, length in lengths_ms.items()}


def engine(**times_ms: float) -> dict[Mark, Stamp]:
    """Marks that an engine gave."""
    return marks(Source.REPORTED, **times_ms)


def sequence(output_tokens: int | None = None, **times_ms: float) -> Sequence:
    """A sequence with marks that an engine gave."""
    return Sequence(marks=engine(**times_ms), output_tokens=output_tokens)


BOUNDS = marks(received=0, finished=1000)
ENGINE = engine(queued=10, scheduled=110, first_token=410, last_token=900)
SERVED = BOUNDS | ENGINE | marks(first_delivered=430)
"""All marks of a streamed reply, on a server."""
SEEN = marks(received=0, first_token=300, last_token=800, finished=850)
"""All marks of a streamed reply, on a client."""


def server(given: dict[Mark, Stamp], **more: Any) -> Evidence:
    """A complete streamed reply seen by a server, unless told otherwise."""
    return _request(given, {"side": Side.SERVER} | more)


def client(given: dict[Mark, Stamp], **more: Any) -> Evidence:
    """A complete streamed reply seen by a client, unless told otherwise."""
    return _request(given, {"side": Side.CLIENT} | more)


def _request(given: dict[Mark, Stamp], more: dict[str, Any]) -> Evidence:
    settings = {"streaming": True, "ending": COMPLETE} | more
    if "output" in settings:
        settings["tokens"] = Tokens(output=settings.pop("output"))
    return Evidence(marks=given, **settings)


def outputs(*times_ms: float) -> OutputTimes:
    """Outputs that came at these times."""
    found = OutputTimes()
    found.stamps.extend(MONOTONIC_NS + ns(time) for time in times_ms)
    return found


def phases(*rows: str) -> list[str]:
    """Expected phases: `name start+length source`, in milliseconds from the start."""
    return list(rows)


def laid(timeline: Timeline) -> list[str]:
    """The phases of *timeline* in the form of `phases`."""
    return [
        f"{each.phase} {_shown(each.start_us - BASE_NS // 1000)}+{_shown(each.duration_us)}"
        f" {each.source}" + (f" of {_shown(each.reported_us)}" if each.reported_us else "")
        for each in timeline.phases
    ]


def _shown(microseconds: int) -> str:
    return f"{microseconds / 1000:.3f}".rstrip("0").rstrip(".")
