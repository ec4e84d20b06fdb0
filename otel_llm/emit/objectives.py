"""Service-level objectives: what they are called, how they are written, and who met them. Pure.

An objective is a number of the timeline and a limit for it (`ttft` within 500 ms); `ok` has no
limit and asks only that the request ended well. Judged as the SRE books do: what a server did
wrong is a miss, what a caller did wrong is not counted, and a caller who leaves does not hide
that a limit had passed by then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from otel_llm.errors import ConfigurationError
from otel_llm.timeline import Outcome, Phase, Side, Timeline

OK, E2E, TTFT = "ok", "e2e", "ttft"
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ns|us|ms|s)")
_CALLER_LEFT = frozenset({Outcome.CANCELLED, Outcome.ABANDONED})


class Objective(NamedTuple):
    """One objective; `limit_ns` is the longest time that meets it, None for `ok`."""

    name: str
    limit_ns: int | None = None


Verdict = tuple[str, bool]
"""An objective's name, and whether it was met."""


def parse_objectives(
    given: Mapping[str, object] | str, setting: str = "slo"
) -> tuple[Objective, ...]:
    """Objectives from `{"ttft": "500ms", "ok": True}` or `"ttft=500ms,ok"`.

    Raises:
        ConfigurationError: A name or a limit is wrong; the message names *setting* and the key.
    """
    pairs = _pairs(given) if isinstance(given, str) else given.items()
    return tuple(_objective(setting, name, limit) for name, limit in pairs)


def _pairs(text: str) -> Iterable[tuple[str, object]]:
    for entry in text.split(","):
        if entry.strip():
            name, equals, limit = entry.partition("=")
            yield name.strip(), limit.strip() if equals else True


def _objective(setting: str, name: str, limit: object) -> Objective:
    if name not in _NUMBERS and name != OK:
        known = ", ".join((OK, *_NUMBERS))
        raise ConfigurationError(f"{setting}: {name!r} is no objective; known are: {known}")
    if name == OK:
        if limit is not True:
            raise ConfigurationError(f"{setting}: 'ok' has no limit; write {{'ok': True}} or ok")
        return Objective(OK)
    found = _DURATION.fullmatch(limit.strip()) if isinstance(limit, str) else None
    limit_ns = round(float(found[1]) * _UNITS_NS[found[2]]) if found else 0
    if not limit_ns:
        raise ConfigurationError(
            f"{setting}: {name!r} is {'missing' if limit is True else repr(limit)}; it must be a "
            "time above 0 in ns, us, ms or s, such as 500ms"
        )
    return Objective(name, limit_ns)


def judged(
    objectives: Iterable[Objective], timeline: Timeline, status: int | None
) -> list[Verdict]:
    """Which of *objectives* a request met and which it missed; those that do not count are not in.

    *status* is the HTTP status of the reply, None if none was seen.

    - `ok`: met where the number is within the limit; not counted where there is no such number.
    - A server's fault (`error`; `rejected` with a status of 500 or more): every objective is
      missed whose number there is or would have come next.
    - A caller's fault (any other `rejected`): not counted.
    - A caller who left (`cancelled`, `abandoned`): what was complete by then is judged; what was
      not is missed if its limit had passed, else not counted.
    """
    found = ((each.name, _met(each, timeline, status)) for each in objectives)
    return [(name, met) for name, met in found if met is not None]


def _met(objective: Objective, timeline: Timeline, status: int | None) -> bool | None:
    name, limit_ns = objective
    us = None if limit_ns is None else _NUMBERS[name](timeline)
    if timeline.outcome is Outcome.OK:
        return _within(us, limit_ns)
    if timeline.outcome in _CALLER_LEFT:
        return _met_until_left(name, us, limit_ns, timeline)
    if timeline.outcome is Outcome.REJECTED and (status is None or status < 500):
        return None
    pending = name in (OK, E2E, timeline.ended_in) or _awaits_token(name, us, timeline)
    return False if pending or us is not None else None


def _within(us: int | None, limit_ns: int | None) -> bool | None:
    if limit_ns is None:
        return True
    return None if us is None else us * 1000 <= limit_ns


def _met_until_left(
    name: str, us: int | None, limit_ns: int | None, timeline: Timeline
) -> bool | None:
    if limit_ns is None:
        return None
    waits = _awaits_token(name, us, timeline)
    met = _within(timeline.e2e_us if waits else us, limit_ns)
    unfinished = waits or name in (E2E, timeline.ended_in)
    return None if met and unfinished else met


def _awaits_token(name: str, us: int | None, timeline: Timeline) -> bool:
    """True for the first token of a stream that ended before it came."""
    return name == TTFT and us is None and timeline.incomplete


def _itl_p99(timeline: Timeline) -> int | None:
    """The gaps of a client are between chunks, not tokens."""
    gaps = None if timeline.side is Side.CLIENT else timeline.gaps
    return None if gaps is None else gaps.p99_us


def _of_phase(phase: Phase) -> Callable[[Timeline], int | None]:
    return lambda timeline: timeline.duration_us(phase)


_NUMBERS: dict[str, Callable[[Timeline], int | None]] = {
    TTFT: lambda timeline: timeline.ttft_us,
    "tpot": lambda timeline: timeline.tpot_us,
    "itl_p99": _itl_p99,
    E2E: lambda timeline: timeline.e2e_us,
    **{phase.value: _of_phase(phase) for phase in Phase},
}
