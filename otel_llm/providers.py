"""Providers with OTLP export and Prometheus metrics, made from arguments and the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider

from otel_llm import semconv
from otel_llm.emit.metrics import Histograms
from otel_llm.emit.telemetry import FinishedSpans
from otel_llm.emit.values import Value
from otel_llm.errors import ConfigurationError, MissingDependencyError
from otel_llm.propagation.headers import header_fields

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

    from otel_llm.export.batch import BatchProcessor
    from otel_llm.export.own import PerProcess

_log = logging.getLogger("otel_llm")
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass
class Providers:
    """What was made: both providers, and what ends the threads and servers behind them.

    `finished_spans` takes spans that need no life of their own, where spans are exported;
    `histograms` makes cheaper ones, where OTLP alone shows them and in the usual form.
    """

    tracer: TracerProvider
    meter: MeterProvider
    finished_spans: FinishedSpans | None = None
    histograms: Histograms | None = None
    closing: list[Callable[[], object]] = field(default_factory=list)


def providers(
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    service_name: str | None = None,
    resource: Mapping[str, Value] | None = None,
    head: Sampler | None = None,
    metrics: bool = True,
    prometheus: bool | str | int = False,
    engine: Mapping[str, Value] = MappingProxyType({}),
    environ: Mapping[str, str] | None = None,
) -> Providers:
    """A tracer provider and, unless switched off, a meter provider that export by OTLP.

    *environ* stands for the environment where exporters are chosen and addressed: a host may
    have overwritten the user's own variables by now. *engine* becomes part of the resource when
    something is in it. The other arguments are `configure`'s.
    """
    env = os.environ if environ is None else environ
    try:
        from opentelemetry.sdk.trace import TracerProvider

        from otel_llm.export.batch import BatchProcessor
        from otel_llm.export.finished import finished_spans
        from otel_llm.export.ids import ProcessIdGenerator
    except ImportError:
        raise MissingDependencyError("opentelemetry-sdk", extra="otlp") from None

    described = _resource(service_name, resource, env, engine)
    ids = ProcessIdGenerator()
    made = Providers(
        TracerProvider(sampler=head, resource=described, id_generator=ids), NoOpMeterProvider()
    )
    processor = None
    if exports("OTEL_TRACES_EXPORTER", env):
        exporter = _span_exporter(*target("traces", protocol, endpoint, env), env)
        processor = BatchProcessor(exporter, env)
        made.tracer.add_span_processor(processor)
        made.finished_spans = finished_spans(processor, ids)
    by_otlp = metrics and exports("OTEL_METRICS_EXPORTER", env)
    otlp = target("metrics", protocol, endpoint, env) if by_otlp else None
    _add_metrics(made, described, processor, otlp, prometheus, env)
    made.closing.append(made.tracer.shutdown)
    return made


def _add_metrics(
    made: Providers,
    described: Resource,
    processor: BatchProcessor | None,
    otlp: tuple[str, str | None] | None,
    prometheus: bool | str | int,
    env: Mapping[str, str],
) -> None:
    """A meter provider with a reader for each way that metrics take, if there is one."""
    if otlp is None and prometheus is False:
        return
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

    from otel_llm.export.batch import observe

    readers: list[MetricReader] = []
    if prometheus is not False:  # first, as it may fail and has no thread yet
        readers.append(_prometheus_reader(made, prometheus))
    if otlp is not None:
        from otel_llm.export.metrics import ForkedMetricReader
        from otel_llm.export.own import OwnMetricExporter
        from otel_llm.export.tallies import Tallies, by_default

        tallies = Tallies()
        exporter = OwnMetricExporter(_own("metrics", *otlp))
        readers.append(ForkedMetricReader(exporter, spans=processor, tallies=tallies))
        # The SDK has something to collect in any case: the processor's lost spans.
        if len(readers) == 1 and processor is not None and by_default(env):
            made.histograms = tallies
    provider = SdkMeterProvider(readers, resource=described)
    if processor is not None:
        observe(provider.get_meter(semconv.SCOPE), processor)
    made.meter = provider
    made.closing.append(provider.shutdown)


def _prometheus_reader(made: Providers, where: bool | str | int) -> MetricReader:
    """Metrics in the process's own registry, or in one of ours that is served at an address."""
    from otel_llm.prometheus import prometheus_reader, serve

    if where is True:
        return prometheus_reader()
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    made.closing.append(serve(where, registry).close)
    return prometheus_reader(registry)


def _resource(
    service_name: str | None,
    attributes: Mapping[str, Value] | None,
    env: Mapping[str, str],
    engine: Mapping[str, Value],
) -> Resource:
    from otel_llm.export.resource import described

    given: dict[str, Any] = dict(attributes or {})
    if service_name:
        given[semconv.SERVICE_NAME] = service_name
    return described(given, env, engine)


@cache
def warn_of_silence() -> None:
    """Say once in a process that the environment names a receiver and nobody exports to it."""
    provider = trace.get_tracer_provider()
    named = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if named and isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        _log.warning(
            "%s is set, but instrument() makes no exporter and no global tracer provider is there "
            "yet: until one is, no span is exported. Call otel_llm.configure() instead, or set up "
            "an SDK first and pass its provider",
            named,
        )


def exports(variable: str, env: Mapping[str, str]) -> bool:
    """Whether a signal is exported; OTLP is the one exporter that is built here."""
    wanted = [name.strip() for name in env.get(variable, "").split(",") if name.strip()] or ["otlp"]
    others = [name for name in wanted if name != "none" and not name.startswith("otlp")]
    if others:
        _log.warning(
            "%s names %s, which is not built here: only OTLP is (for others pass your own "
            "providers to instrument())",
            variable,
            ", ".join(others),
        )
    return any(name.startswith("otlp") for name in wanted)


def target(
    signal: str, protocol: str | None, endpoint: str | None, env: Mapping[str, str]
) -> tuple[str, str | None]:
    """Protocol and address for one signal; None leaves the address to the exporter's default."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}"
    for name in (f"{own}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        if header_fields(env.get(name, "")) is None:
            raise ConfigurationError(
                f"{name} is not a list of name=value, separated by commas (its text is not shown)"
            )
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
        own = _own("traces", protocol, url)
        from otel_llm.export.own import OwnSpanExporter
        from otel_llm.export.safe import SafeSpanExporter

        return SafeSpanExporter(OwnSpanExporter(own))
    try:
        from otel_llm.export.http import HttpSpanExporter

        return HttpSpanExporter(url, env)
    except ImportError:
        raise MissingDependencyError("requests", extra="otlp") from None


_CLASSES = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}


def _own(signal: str, protocol: str, url: str | None) -> PerProcess[Any]:
    """The official exporters of one signal; both protocols' packages have the same layout."""
    kind = "grpc" if protocol == "grpc" else "http"
    module, name = _CLASSES[signal]
    try:
        package = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.{module}")
    except ImportError:
        extra = "otlp-grpc" if kind == "grpc" else "otlp"
        raise MissingDependencyError(
            f"opentelemetry-exporter-otlp-proto-{kind}", extra=extra
        ) from None
    from otel_llm.export.own import PerProcess

    if kind == "grpc":
        _check_compression(signal)
    return PerProcess(partial(_quietly, getattr(package, name), url), native=kind == "grpc")


def _check_compression(signal: str) -> None:
    """Tell now what the exporter for gRPC would only tell when it is made, at the first export."""
    for name in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_COMPRESSION",
        "OTEL_EXPORTER_OTLP_COMPRESSION",
    ):
        value = os.environ.get(name, "gzip")
        if value.strip().lower() != "gzip":
            raise ConfigurationError(f"{name} is {value!r}; with grpc it must be gzip, or not set")


def _quietly(exporter: Callable[..., Any], url: str | None) -> Any:
    parser = logging.getLogger("opentelemetry.util.re")
    before, parser.disabled = parser.disabled, True  # it logs headers that it cannot read
    try:
        return exporter(endpoint=url)
    finally:
        parser.disabled = before
