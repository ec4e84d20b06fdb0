"""OpenTelemetry instrumentation for LLM inference: where did the p99 go?

Importing this loads the OpenTelemetry API at most; engines, web frameworks and the SDK are
imported where they are used. Public names:

- `instrument()` / `uninstrument()`: patch the installed engines; global providers are not touched.
- `configure()`: build providers that export by OTLP, and instrument with them.
- `trace_request()`: the request span for an engine or a client of one's own.
- `current_request()`: the request that a server opened, for an engine that knows more of it.
- `annotate()` / `event()`: facts of the application on the current request's span.
- `Mark`, `Phase`, `Part`, `Side`, `Outcome`: the words of a request's time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_llm._version import __version__
    from otel_llm.api import InferenceMiddleware, trace_request
    from otel_llm.config import instrument, uninstrument
    from otel_llm.errors import (
        ConfigurationError,
        MissingDependencyError,
        OtelLLMError,
        UnsupportedEngineError,
    )
    from otel_llm.setup import configure
    from otel_llm.timeline import Mark, Outcome, Part, Phase, Side
    from otel_llm.tracing import TracedRequest, annotate, current_request, event

__all__ = [
    "ConfigurationError",
    "InferenceMiddleware",
    "Mark",
    "MissingDependencyError",
    "OtelLLMError",
    "Outcome",
    "Part",
    "Phase",
    "Side",
    "TracedRequest",
    "UnsupportedEngineError",
    "__version__",
    "annotate",
    "configure",
    "current_request",
    "event",
    "instrument",
    "trace_request",
    "uninstrument",
]

_HOME = {
    "__version__": "_version",
    "configure": "setup",
    "instrument": "config",
    "uninstrument": "config",
    "trace_request": "api",
    "TracedRequest": "tracing",
    "annotate": "tracing",
    "current_request": "tracing",
    "event": "tracing",
    "InferenceMiddleware": "api",
} | dict.fromkeys(("Mark", "Outcome", "Part", "Phase", "Side"), "timeline")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"otel_llm.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
