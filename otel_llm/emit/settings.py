"""How telemetry is written; one frozen value, made by `otel_llm.config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from otel_llm.emit.objectives import Objective
from otel_llm.semconv import V1_41, Vocabulary

Redact = Callable[[str, object], object]
"""Called with the attribute's name and the structured content; returns what may be written."""


@dataclass(frozen=True, slots=True)
class EmitSettings:
    """Switches of emission.

    `phase_spans` writes the `llm.<phase>` view; `latency_aliases` adds vLLM's and SGLang's
    `gen_ai.latency.*` names in seconds. Content is written only with `capture_content`, after
    `redact`, and cut to `content_limit` characters. Every request is judged by the objectives of
    `slo`; attributes named in `metric_attributes` are put on metrics too.
    """

    vocabulary: Vocabulary = V1_41
    phase_spans: bool = True
    latency_aliases: bool = False
    capture_content: bool = False
    content_limit: int = 32_768
    redact: Redact | None = None
    slo: tuple[Objective, ...] = ()
    metric_attributes: tuple[str, ...] = ()


def attribute_names(given: Iterable[str] | str) -> tuple[str, ...]:
    """Names from a list or from a comma-separated text, each once; empty ones are left out."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
