"""`configure`: providers with OTLP export, and everything instrumented with them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from otel_llm import config
from otel_llm.emit.settings import Redact
from otel_llm.providers import Providers, providers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

_log = logging.getLogger("otel_llm")


def configure(  # noqa: PLR0913 - one argument per thing that users set
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    service_name: str | None = None,
    resource: Mapping[str, str] | None = None,
    head: Sampler | None = None,
    metrics: bool = True,
    prometheus: bool | str | int | None = None,
    logs: bool | None = None,
    engines: Iterable[str] | None = None,
    capture_content: bool | None = None,
    redact: Redact | None = None,
    vllm_stats: bool | None = None,
    trust_remote: bool | None = None,
    slo: config.Slo | None = None,
    metric_attributes: Iterable[str] | None = None,
    host: bool | str | None = None,
    gpu: bool | None = None,
    set_global: bool = False,
) -> None:
    """Build providers that export by OTLP, and instrument with them.

    Args:
        endpoint: Base URL of an OTLP receiver, `http://host:4318` for HTTP; otherwise the
            `OTEL_EXPORTER_OTLP_*` variables decide.
        protocol: `http/protobuf` (default) or `grpc`; otherwise `OTEL_EXPORTER_OTLP_PROTOCOL`.
        service_name: `service.name`, unless `OTEL_SERVICE_NAME` is set and this is not.
        resource: Further resource attributes.
        head: A head sampler; otherwise `OTEL_TRACES_SAMPLER` decides.
        metrics: Export metrics too, unless `OTEL_METRICS_EXPORTER=none`.
        prometheus: True shows metrics in the process's own Prometheus registry (`/metrics` of
            vLLM and others); `host:port` or a port serves them there; otherwise
            `OTEL_LLM_PROMETHEUS` decides.
        logs: Put trace and span ids on log records; otherwise `OTEL_LLM_LOGS` decides.
        engines: As for `instrument`.
        capture_content: As for `instrument`.
        redact: As for `instrument`.
        vllm_stats: As for `instrument`.
        trust_remote: As for `instrument`.
        slo: As for `instrument`.
        metric_attributes: As for `instrument`.
        host: Sample the operating system around requests; `"all"` on clients, too; otherwise
            `OTEL_LLM_HOST` decides.
        gpu: Sample NVIDIA GPUs; otherwise `OTEL_LLM_GPU` decides.
        set_global: Also make them the process's global providers.

    Raises:
        ConfigurationError: A setting or environment variable is wrong.
        MissingDependencyError: A package for what was asked is not installed.
    """
    settings = config.Settings.from_environment()
    if settings.disabled:
        return
    if config.RUNTIME.telemetry is not None:
        _log.warning("configure() was called again and changes nothing; call uninstrument() first")
        return
    engines = None if engines is None else list(engines)
    config.rows_of(engines)
    emit = config.emit_settings(
        settings,
        capture_content=capture_content,
        redact=redact,
        slo=slo,
        metric_attributes=metric_attributes,
    )
    around = settings.host.given(host, gpu)
    made = providers(
        endpoint=endpoint,
        protocol=protocol,
        service_name=service_name,
        resource=resource,
        head=head,
        metrics=metrics,
        prometheus=settings.prometheus if prometheus is None else prometheus,
        engine=config.RUNTIME.engine,
    )
    if set_global:
        _set_global(made)
    stamped = settings.logs if logs is None else logs
    config.RUNTIME.use(made, emit, logs=stamped, host=around)
    config.instrument(engines=engines, vllm_stats=vllm_stats, trust_remote=trust_remote)


def _set_global(made: Providers) -> None:
    """Give the providers to everybody; from now on they are not ours to end."""
    from opentelemetry import metrics, trace

    trace.set_tracer_provider(made.tracer)
    metrics.set_meter_provider(made.meter)
    made.finished_spans = made.histograms = None
    for end in (made.tracer.shutdown, getattr(made.meter, "shutdown", None)):
        if end in made.closing:
            made.closing.remove(end)
