"""TGI's timing headers, read as evidence.

A plain reply states its phases in `x-…` headers: whole milliseconds, but `x-compute-time` in
seconds. A streamed reply is sent before they are known and has none of them. `x-time-per-token`
includes prefill and is therefore not read: it is no time per output token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_llm.emit.values import as_count

_LONGEST_S = 366 * 86_400.0


class TgiTimes(NamedTuple):
    """What the headers of one reply say; None where they say nothing usable.

    Durations are in seconds; `inference` is prefill and decode together.
    """

    total: float | None = None
    validation: float | None = None
    queue: float | None = None
    inference: float | None = None
    compute: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def read_headers(headers: Mapping[str, str]) -> TgiTimes:
    """The timings in *headers*, whose names may be in any case; bad values are left out."""
    found = {str(name).lower(): value for name, value in headers.items()}
    return TgiTimes(
        total=_seconds(found.get("x-total-time"), 1e-3),
        validation=_seconds(found.get("x-validation-time"), 1e-3),
        queue=_seconds(found.get("x-queue-time"), 1e-3),
        inference=_seconds(found.get("x-inference-time"), 1e-3),
        compute=_seconds(found.get("x-compute-time"), 1.0),
        input_tokens=as_count(found.get("x-prompt-tokens")),
        output_tokens=as_count(found.get("x-generated-tokens")),
    )


def _seconds(text: object, unit: float) -> float | None:
    try:
        value = float(str(text)) * unit
    except (TypeError, ValueError):
        return None
    return value if 0 <= value <= _LONGEST_S else None
