"""`configure`: providers with OTLP export, made from arguments and the standard variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from otel_llm import config
from otel_llm.emit.settings import Redact
from otel_llm.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

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
) -> tuple[TracerProvider, MeterProvider | None]:
    """A tracer provider and, unless switched off, a meter provider that export by OTLP."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingDependencyError("opentelemetry-sdk", extra="otlp") from None
    from otel_llm.export import SafeSpanExporter

    wanted = protocol or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    described = _resource(service_name, resource)
    tracer_provider = TracerProvider(sampler=head, resource=described)
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        exporter = _span_exporter(_protocol(wanted), endpoint)
        tracer_provider.add_span_processor(BatchSpanProcessor(SafeSpanExporter(exporter)))
    if not metrics or os.environ.get("OTEL_METRICS_EXPORTER", "otlp") == "none":
        return tracer_provider, None
    return tracer_provider, _meter_provider(described, protocol, endpoint)


def _meter_provider(
    resource: Resource, protocol: str | None, endpoint: str | None
) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    wanted = protocol or os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL")
    exporter = _metric_exporter(_protocol(wanted), endpoint)
    return MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource)


def _resource(service_name: str | None, attributes: Mapping[str, str] | None) -> Resource:
    from opentelemetry.sdk.resources import Resource

    given: dict[str, Any] = dict(attributes or {})
    if service_name:
        given["service.name"] = service_name
    return Resource.create(given)


def _protocol(wanted: str | None) -> str:
    protocol = (wanted or os.environ.get(PROTOCOL) or "http/protobuf").strip()
    if protocol not in {"http/protobuf", "grpc"}:
        raise ConfigurationError(f"{PROTOCOL} is {protocol!r}; it must be http/protobuf or grpc")
    return protocol


def _span_exporter(protocol: str, endpoint: str | None) -> SpanExporter:
    if protocol == "grpc":
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as GrpcExporter,
            )
        except ImportError:
            raise MissingDependencyError(
                "opentelemetry-exporter-otlp-proto-grpc", extra="otlp-grpc"
            ) from None
        return GrpcExporter(endpoint=endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise MissingDependencyError(
            "opentelemetry-exporter-otlp-proto-http", extra="otlp"
        ) from None
    return OTLPSpanExporter(endpoint=_http_url(endpoint, "traces"))


def _metric_exporter(protocol: str, endpoint: str | None) -> MetricExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint=_http_url(endpoint, "metrics"))


def _http_url(endpoint: str | None, signal: str) -> str | None:
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"endpoint is {endpoint!r}; for http/protobuf it must be a URL such as "
            "http://localhost:4318"
        )
    return f"{endpoint.rstrip('/')}/v1/{signal}"


def _set_global(tracer_provider: TracerProvider, meter_provider: MeterProvider | None) -> None:
    from opentelemetry import metrics, trace

    trace.set_tracer_provider(tracer_provider)
    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
