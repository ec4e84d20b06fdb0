"""`configure`: providers with OTLP export, made from arguments and the standard variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider

from otel_llm import config, semconv
from otel_llm.emit.settings import Redact
from otel_llm.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

_log = logging.getLogger("otel_llm")
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


def configure(
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    service_name: str | None = None,
    resource: Mapping[str, str] | None = None,
    head: Sampler | None = None,
    metrics: bool = True,
    engines: Iterable[str] | None = None,
    capture_content: bool | None = None,
    redact: Redact | None = None,
    trust_remote: bool | None = None,
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
        engines: As for `instrument`.
        capture_content: As for `instrument`.
        redact: As for `instrument`.
        trust_remote: As for `instrument`.
        set_global: Also make them the process's global providers.

    Raises:
        ConfigurationError: A setting or environment variable is wrong.
        MissingDependencyError: The SDK or the exporter for the protocol is not installed.
    """
    if config.Settings.from_environment().disabled:
        return
    if config.RUNTIME.telemetry is not None:
        _log.warning("configure() was called again and changes nothing; call uninstrument() first")
        return
    engines = None if engines is None else list(engines)
    config.rows_of(engines)
    tracer_provider, meter_provider = providers(
        endpoint=endpoint,
        protocol=protocol,
        service_name=service_name,
        resource=resource,
        head=head,
        metrics=metrics,
    )
    if set_global:
        _set_global(tracer_provider, meter_provider)
    config.instrument(
        engines=engines,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        capture_content=capture_content,
        redact=redact,
        trust_remote=trust_remote,
    )


def providers(
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    service_name: str | None = None,
    resource: Mapping[str, str] | None = None,
    head: Sampler | None = None,
    metrics: bool = True,
    environ: Mapping[str, str] | None = None,
) -> tuple[TracerProvider, MeterProvider]:
    """A tracer provider and, unless switched off, a meter provider that export by OTLP.

    *environ* stands for the environment where exporters are chosen and addressed: a host may
    have overwritten the user's own variables by now.
    """
    env = os.environ if environ is None else environ
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingDependencyError("opentelemetry-sdk", extra="otlp") from None

    described = _resource(service_name, resource)
    tracer_provider = TracerProvider(sampler=head, resource=described)
    if _exports("OTEL_TRACES_EXPORTER", env):
        exporter = _span_exporter(*_target("traces", protocol, endpoint, env), env)
        tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
    if not (metrics and _exports("OTEL_METRICS_EXPORTER", env)):
        return tracer_provider, NoOpMeterProvider()
    return tracer_provider, _meter_provider(described, *_target("metrics", protocol, endpoint, env))


def _meter_provider(resource: Resource, protocol: str, url: str | None) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(_exporter("metrics", protocol, url))
    return SdkMeterProvider([reader], resource=resource)


def _resource(service_name: str | None, attributes: Mapping[str, str] | None) -> Resource:
    from opentelemetry.sdk.resources import Resource

    given: dict[str, Any] = dict(attributes or {})
    if service_name:
        given[semconv.SERVICE_NAME] = service_name
    return Resource.create(given)


def _exports(variable: str, env: Mapping[str, str]) -> bool:
    """Whether a signal is exported; OTLP is the one exporter that is built here."""
    wanted = env.get(variable, "").strip() or "otlp"
    if wanted not in {"otlp", "none"}:
        raise ConfigurationError(
            f"{variable} is {wanted!r}; configure() builds OTLP exporters, so it must be otlp or "
            "none (for others pass your own providers to instrument())"
        )
    return wanted == "otlp"


def _target(
    signal: str, protocol: str | None, endpoint: str | None, env: Mapping[str, str]
) -> tuple[str, str | None]:
    """Protocol and address for one signal; None leaves the address to the exporter's default."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}"
    wanted = (
        protocol or env.get(f"{own}_PROTOCOL") or env.get(PROTOCOL) or "http/protobuf"
    ).strip()
    if wanted not in {"http/protobuf", "grpc"}:
        raise ConfigurationError(f"{PROTOCOL} is {wanted!r}; it must be http/protobuf or grpc")
    if endpoint is None and env.get(f"{own}_ENDPOINT"):
        return wanted, env[f"{own}_ENDPOINT"]
    base = endpoint or env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
    if base is None or wanted == "grpc":
        return wanted, base
    if not base.startswith(("http://", "https://")):
        raise ConfigurationError(
            "the OTLP endpoint is not a URL; for http/protobuf it must be one such as "
            "http://localhost:4318"
        )
    return wanted, f"{base.rstrip('/')}/v1/{signal}"


_CREDENTIALS = tuple(
    f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}CREDENTIAL_PROVIDER" for signal in ("", "TRACES_")
)


def _span_exporter(protocol: str, url: str | None, env: Mapping[str, str]) -> SpanExporter:
    """Ours over HTTP; the official one, made safe, for gRPC and for credentials from a plugin."""
    if protocol == "grpc" or any(env.get(name) for name in _CREDENTIALS):
        from otel_llm.export.safe import SafeSpanExporter

        return SafeSpanExporter(_exporter("traces", protocol, url))
    try:
        from otel_llm.export.http import HttpSpanExporter

        return HttpSpanExporter(url, env)
    except ImportError:
        raise MissingDependencyError("requests", extra="otlp") from None


_CLASSES = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}


def _exporter(signal: str, protocol: str, url: str | None) -> Any:
    """The official exporter of one signal; both protocols' packages have the same layout."""
    kind = "grpc" if protocol == "grpc" else "http"
    module, name = _CLASSES[signal]
    try:
        package = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.{module}")
    except ImportError:
        extra = "otlp-grpc" if kind == "grpc" else "otlp"
        raise MissingDependencyError(
            f"opentelemetry-exporter-otlp-proto-{kind}", extra=extra
        ) from None
    return getattr(package, name)(endpoint=url)


def _set_global(tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
    from opentelemetry import metrics, trace

    trace.set_tracer_provider(tracer_provider)
    metrics.set_meter_provider(meter_provider)
