"""Other instrumentations at work on the same call: leave it alone, or join the span they made.

A call that another library already traces has one span, not two. Where that span can be found and
is still open, our summary and phases go onto it (`join`), and token counts and the conventions'
metrics stay theirs. `OTEL_LLM_BESIDE=own` always writes a span of our own, `off` leaves such calls
alone. A library that writes its span only after the call has none to join; its calls are left
alone unless `own` is set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
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
_SUPPRESSED = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")
_TRACED_ABOVE = "suppress_language_model_instrumentation"
"""OpenLLMetry sets it around calls of which it has made a span already."""
_LANGCHAIN = (
    "openinference.instrumentation.langchain",
    "opentelemetry.instrumentation.langchain",
)
_LITELLM = "litellm.integrations.opentelemetry"
_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
_KINDS = frozenset({"LLM", "EMBEDDING"})


def is_suppressed(context: Context) -> bool:
    """True where nothing is to be traced."""
    return any(context.get(key) for key in _SUPPRESSED)


def foreign_span(context: Context) -> Span | None:
    """The open span that another library has made for this call of a language model, or None."""
    span = trace.get_current_span(context)
    if _is_foreign(span):
        return span
    found = _span_of_langchain()
    return found if found is not None and found.is_recording() else None


def is_theirs(context: Context) -> bool:
    """True within a call that another library traces, on whatever span, now or afterwards."""
    traced = context_api.get_value(INFERENCE, context) is not None
    return traced or bool(context.get(_TRACED_ABOVE)) or _is_litellms_to_write()


def _is_foreign(span: Span) -> bool:
    if not span.is_recording():
        return False
    scope = getattr(span, "instrumentation_scope", None)
    if getattr(scope, "name", None) == semconv.SCOPE:
        return False
    attributes: Any = getattr(span, "attributes", None)
    try:
        return _is_inference(attributes or {})
    except Exception:  # noqa: BLE001 - not a mapping after all
        return False


def _is_inference(attributes: Any) -> bool:
    return (
        attributes.get(semconv.OPERATION) in _OPERATIONS
        or attributes.get(semconv.OPENINFERENCE_KIND) in _KINDS
        or attributes.get(semconv.LLM_REQUEST_TYPE) is not None
    )


def _span_of_langchain() -> Span | None:
    """The span that an instrumentation keeps for LangChain's model run; it is not the current one.

    A caller of ours has the run in its `run_manager`, and that has the instrumentation. Callers
    are looked at only in a process with one of those.
    """
    if not any(each in sys.modules for each in _LANGCHAIN):
        return None
    for frame in _callers("langchain"):
        run: Any = frame.f_locals.get("run_manager")
        if hasattr(run, "run_id"):
            kept = (_kept(each, run.run_id) for each in run.handlers)
            return next((span for span in kept if span is not None), None)
    return None


def _kept(handler: Any, run_id: object) -> Span | None:
    """What OpenInference's or OpenLLMetry's *handler* has for a run."""
    if not type(handler).__module__.startswith(_LANGCHAIN):
        return None
    if hasattr(handler, "get_span"):
        span: Span | None = handler.get_span(run_id)
        return span
    return getattr(handler.spans.get(run_id), "span", None)


def _is_litellms_to_write() -> bool:
    """True within a call of LiteLLM's, if its OpenTelemetry callback will write a span of it.

    Callers are looked at only in a process that has such a callback.
    """
    library = sys.modules.get("litellm")
    if library is None or not any(map(_writes_spans, _callbacks(library))):
        return False
    return next(_callers("litellm.llms."), None) is not None


def _callbacks(library: Any) -> list[Any]:
    names = ("callbacks", "success_callback", "_async_success_callback")
    return [each for name in names for each in getattr(library, name, None) or ()]


def _writes_spans(callback: object) -> bool:
    return callback == "otel" or any(each.__module__ == _LITELLM for each in type(callback).__mro__)


def _callers(prefix: str) -> Iterator[FrameType]:
    """The frames below which this runs, of modules whose names begin so; the nearest first."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - there is no other way to them
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(prefix):
            yield frame
        frame = frame.f_back
