"""Other instrumentations at work on the same call: leave it alone, or join the span they made.

A call that another library already traces has one span, not two. Where that span is current and
still open, our summary and phases go onto it (`join`), and token counts and the conventions'
metrics stay theirs. `OTEL_LLM_BESIDE=own` always writes a span of our own, `off` leaves such calls
alone.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import (
    _SUPPRESS_INSTRUMENTATION_KEY,
    Context,
)
from opentelemetry.trace import Span

from otel_llm import semconv

INFERENCE = "opentelemetry.genai.client.inference.context"
"""Where the official GenAI instrumentations keep the open inference call."""
_SUPPRESSED = (
    _SUPPRESS_INSTRUMENTATION_KEY,
    "suppress_instrumentation",
    "suppress_language_model_instrumentation",
)
_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
_KINDS = frozenset({"LLM", "EMBEDDING"})


def is_suppressed(context: Context) -> bool:
    """True where nothing is to be traced, or no call of a language model."""
    return any(context.get(key) for key in _SUPPRESSED)


def foreign_span(context: Context) -> Span | None:
    """The current span if another library made it for a call of a language model."""
    span = trace.get_current_span(context)
    if not span.is_recording():
        return None
    scope = getattr(span, "instrumentation_scope", None)
    if getattr(scope, "name", None) == semconv.SCOPE:
        return None
    attributes: Any = getattr(span, "attributes", None)
    try:
        return span if _is_inference(attributes or {}) else None
    except Exception:  # noqa: BLE001 - not a mapping after all
        return None


def is_traced(context: Context) -> bool:
    """True inside a call that an official GenAI instrumentation traces, sampled or not."""
    return context_api.get_value(INFERENCE, context) is not None


def _is_inference(attributes: Any) -> bool:
    return (
        attributes.get(semconv.OPERATION) in _OPERATIONS
        or attributes.get(semconv.OPENINFERENCE_KIND) in _KINDS
        or attributes.get(semconv.LLM_REQUEST_TYPE) is not None
    )
