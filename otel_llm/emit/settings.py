"""How telemetry is written; one frozen value, made by `otel_llm.config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from otel_llm.emit.objectives import Objective
from otel_llm.semconv import V1_41, Vocabulary


class Beside(StrEnum):
    """What to do with a client's call that another instrumentation traces, too.

    `JOIN` writes our summary and phases onto the span that it made, `OWN` makes a span of ours in
    any case, `OFF` leaves the call alone.
    """

    JOIN = "join"
    OWN = "own"
    OFF = "off"


Redact = Callable[[str, object], object]
"""Called with the attribute's name and the structured content; returns what may be written."""


@dataclass(frozen=True, slots=True)
class EmitSettings:
    """Switches of emission.

    `phase_spans` writes the `llm.<phase>` view; `latency_aliases` adds vLLM's and SGLang's
    `gen_ai.latency.*` names in seconds; `chunk_metrics` records every gap between a client's
    chunks, at several microseconds each. Content is written only with `capture_content`, after
    `redact`, and cut to `content_limit` characters. Every request is judged by the objectives of
    `slo`; attributes named in `metric_attributes` are put on metrics too.
    """

    vocabulary: Vocabulary = V1_41
    phase_spans: bool = True
    latency_aliases: bool = False
    chunk_metrics: bool = False
    capture_content: bool = False
    content_limit: int = 32_768
    redact: Redact | None = None
    slo: tuple[Objective, ...] = ()
    metric_attributes: tuple[str, ...] = ()


def attribute_names(given: Iterable[str] | str) -> tuple[str, ...]:
    """Names from a list or from a comma-separated text, each once; empty ones are left out."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
