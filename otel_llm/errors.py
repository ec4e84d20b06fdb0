"""Exceptions of otel_llm.

They are raised while a process is being set up, by `trace_request` for wrong use, and by the
command line. Telemetry itself never raises into an application (see `guard`).

    OtelLLMError
    ├── ConfigurationError       a setting, argument or environment variable is wrong
    ├── MissingDependencyError   a feature needs an extra that is not installed
    └── UnsupportedEngineError   an engine was asked for by name and cannot be instrumented
"""

from __future__ import annotations


class OtelLLMError(Exception):
    """Base of every exception that otel_llm raises on its own account."""


class ConfigurationError(OtelLLMError, ValueError):
    """A setting is wrong; the message names the setting, the value's kind and what is accepted."""


class MissingDependencyError(OtelLLMError, ImportError):
    """A feature needs a package that is not installed; the message says what to install."""

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'otel-llm[{extra}]'")
        self.package = package
        self.extra = extra


class UnsupportedEngineError(OtelLLMError):
    """An engine named by the user is unknown, not installed, or too old to instrument."""
