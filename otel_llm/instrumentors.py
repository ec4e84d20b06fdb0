"""Ways in without code: vLLM's plugin and OpenTelemetry's instrumentor entry points."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, ClassVar

from opentelemetry import trace

from otel_llm import config, semconv
from otel_llm.emit.telemetry import Telemetry
from otel_llm.errors import ConfigurationError, OtelLLMError

_log = logging.getLogger("otel_llm")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def vllm_plugin() -> None:
    """`vllm.general_plugins`: patch vLLM in every one of its processes, and do no more.

    Providers are made when a server starts to listen, so that engine and worker processes get
    no exporter threads. The global ones are used if an SDK is set up by then, save where the
    environment names an endpoint and nobody but vLLM's own tracing has set one up.
    """
    try:
        if not _is_wanted("vllm"):
            return
        # vLLM writes the address of its own exporter into the environment later on.
        asked = not _is_set_up() and any(os.environ.get(name) for name in _ENDPOINTS)
        own = dict(os.environ) if asked else None
        host = config.host(partial(_telemetry, own=own))
        config.install(config.rows_of(["vllm"]), host)
    except OtelLLMError as error:
        _log.error("otel_llm stays off: %s", error)
    except Exception as error:  # noqa: BLE001 - vLLM does not start if a plugin raises
        _log.error("otel_llm stays off (%s)", type(error).__name__)


def _is_wanted(engine: str) -> bool:
    """Whether the environment switches *engine* on; raises `ConfigurationError` if it is wrong."""
    settings = config.Settings.from_environment()
    return not settings.disabled and (settings.engines is None or engine in settings.engines)


def _telemetry(*, own: Mapping[str, str] | None) -> Telemetry | None:
    """The telemetry of a process that nobody configured; None if its settings are wrong."""
    runtime = config.RUNTIME
    if runtime.telemetry is None and runtime.asked:
        return runtime.current()  # somebody has called `instrument` since
    if runtime.telemetry is None and not runtime.failed:
        try:
            runtime.telemetry = _made(own=own)
        except OtelLLMError as error:
            runtime.failed = True  # told once, and not tried again at each request
            _log.error("otel_llm stays off: %s", error)
    return runtime.telemetry


def _made(*, own: Mapping[str, str] | None) -> Telemetry:
    settings = config.Settings.from_environment()
    if own is None:
        return Telemetry(settings=settings.emit, around=config.RUNTIME.watch(settings.host))
    from otel_llm.providers import providers

    attributes = own.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = "OTEL_SERVICE_NAME" in own or semconv.SERVICE_NAME in attributes
    wanted = partial(
        providers,
        service_name=None if named else "vllm",
        engine=config.RUNTIME.engine,
        environ=own,
    )
    try:
        made = wanted(prometheus=settings.prometheus)
    except ConfigurationError as error:
        if settings.prometheus is False:
            raise
        # Several API servers share one environment, and so one port.
        _log.warning("no metrics for Prometheus: %s", error)
        made = wanted()
    return config.RUNTIME.use(made, settings.emit, logs=settings.logs)


def _is_set_up() -> bool:
    """True when the process has a global provider that is not the API's placeholder."""
    provider = trace.get_tracer_provider()
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


class _Instrumentor:
    """An `opentelemetry_instrumentor` entry point: `opentelemetry-instrument` switches it on."""

    engine: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, as pip writes it."""
        return self.requires

    def instrument(self, **kwargs: Any) -> None:
        """As `otel_llm.instrument`, for it alone; nothing if `OTEL_LLM_ENGINES` leaves it out."""
        try:
            if _is_wanted(self.engine):
                config.instrument(
                    engines=[self.engine],
                    tracer_provider=kwargs.get("tracer_provider"),
                    meter_provider=kwargs.get("meter_provider"),
                )
        except OtelLLMError as error:
            _log.error("otel_llm stays off: %s", error)

    def uninstrument(self, **_kwargs: Any) -> None:
        """As `otel_llm.uninstrument`, for it alone."""
        config.uninstrument([self.engine])


class VllmInstrumentor(_Instrumentor):
    """VLLM; its distribution has several names, so that none can be required."""

    engine = "vllm"


class OpenAIInstrumentor(_Instrumentor):
    """The OpenAI client."""

    engine = "openai"
    requires = ("openai >= 1.0",)


class OllamaInstrumentor(_Instrumentor):
    """Ollama's client."""

    engine = "ollama"
    requires = ("ollama >= 0.4",)


class HuggingFaceInstrumentor(_Instrumentor):
    """The inference clients of huggingface_hub."""

    engine = "huggingface"
    requires = ("huggingface-hub >= 0.28",)


class TextGenerationInstrumentor(_Instrumentor):
    """TGI's own client."""

    engine = "text_generation"
    requires = ("text-generation >= 0.7",)
