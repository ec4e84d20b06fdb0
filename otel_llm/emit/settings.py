"""How telemetry is written; one frozen value, made by `otel_llm.config`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from otel_llm.semconv import V1_41, Vocabulary

Redact = Callable[[str, object], object]
"""Called with the attribute's name and the structured content; returns what may be written."""


@dataclass(frozen=True, slots=True)
class EmitSettings:
    """Switches of emission.

    `phase_spans` writes the `llm.<phase>` view; `latency_aliases` adds vLLM's and SGLang's
    `gen_ai.latency.*` names in seconds. Content is written only with `capture_content`, after
    `redact`, and cut to `content_limit` characters.
    """

    vocabulary: Vocabulary = V1_41
    phase_spans: bool = True
    latency_aliases: bool = False
    capture_content: bool = False
    content_limit: int = 32_768
    redact: Redact | None = None
