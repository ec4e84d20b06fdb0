"""Whether telemetry will arrive: the exporters' packages, and what the receiver answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from otel_llm.doctor.finding import Finding, error, info, ok, warning
from otel_llm.doctor.network import ENDPOINT, ENDPOINTS, Outcome, Probe

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

_WRONG_PORTS = {("http/protobuf", 4317): "grpc", ("grpc", 4318): "http/protobuf"}
_PACKAGES = {
    "http/protobuf": ("opentelemetry-exporter-otlp-proto-http", "requests"),
    "grpc": ("opentelemetry-exporter-otlp-proto-grpc",),
}
_EXTRAS = {"http/protobuf": "otlp", "grpc": "otlp-grpc"}
_TROUBLES = {
    Outcome.UNRESOLVED: ("export.unresolved", "Check the host name, and the DNS of this machine."),
    Outcome.UNREACHABLE: (
        "export.unreachable",
        (
            "Start the collector there, or correct the host or port. In a container, localhost is "
            "the container itself."
        ),
    ),
    Outcome.TIMEOUT: ("export.timeout", "Check firewalls, network policies, and proxies."),
    Outcome.TLS: (
        "export.tls",
        (
            "Use http:// if the receiver has no TLS; else give its authority's certificate with "
            "OTEL_EXPORTER_OTLP_CERTIFICATE."
        ),
    ),
    Outcome.NOT_OTLP: (
        "export.not-otlp",
        "Check host, port, and OTEL_EXPORTER_OTLP_PROTOCOL.",
    ),
    Outcome.MALFORMED: ("export.address", f"Write {ENDPOINT} as http://HOST:4318."),
}


def check(environment: Environment) -> Iterator[Finding]:
    """Every signal that is exported."""
    env = environment.variables
    if env.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        yield warning(
            "export.off",
            "OTEL_TRACES_EXPORTER is none",
            "No traces are exported.",
            "Unset it.",
        )
    if not any(env.get(name) for name in ENDPOINTS):
        yield warning(
            "export.no-endpoint",
            "no OTLP endpoint in the environment",
            "The vLLM plugin then exports nothing, unless a global provider is set up.",
            f"Set {ENDPOINT}=http://HOST:4318, or ignore this if your code calls configure().",
        )
    for protocol in sorted({each.protocol for each in environment.probes}):
        yield from _packages(environment, protocol)
    for each in environment.probes:
        yield _answer(each)


def _packages(environment: Environment, protocol: str) -> Iterator[Finding]:
    missing = [each for each in _PACKAGES[protocol] if each not in environment.distributions]
    if missing:
        yield error(
            "export.no-exporter",
            f"{' and '.join(missing)} not installed, which {protocol} needs",
            "configure() raises, and the vLLM plugin stays off.",
            f"Run pip install 'otel-llm[{_EXTRAS[protocol]}]'.",
        )


def _answer(probe: Probe) -> Finding:
    where = f"{probe.signal} to {probe.place} by {probe.protocol}"
    if probe.outcome is Outcome.ACCEPTED:
        return ok("export.accepted", f"{where}: accepted")
    other = _WRONG_PORTS.get((probe.protocol, probe.port or 0))
    if other is not None:
        return _wrong_port(probe, where, other)
    if probe.outcome is Outcome.CONNECTED:
        return info("export.connected", f"{where}: connected", "An export was not tried: no grpc.")
    if probe.outcome is Outcome.STATUS:
        return _refusal(probe, where)
    name, remedy = _TROUBLES[probe.outcome]
    return error(name, f"{where}: {probe.outcome}", f"No {probe.signal} arrive.", remedy)


def _wrong_port(probe: Probe, where: str, other: str) -> Finding:
    port = 4318 if probe.port == 4317 else 4317
    return error(
        "export.wrong-port",
        f"{where}: {probe.outcome}",
        f"Port {probe.port} is that of {other} by custom.",
        f"Use port {port}, or set OTEL_EXPORTER_OTLP_PROTOCOL={other}.",
    )


def _refusal(probe: Probe, where: str) -> Finding:
    what = f"{where}: status {probe.status}"
    if probe.status in {404, 405} and probe.signal == "metrics":
        return warning(
            "export.metrics-refused",
            what,
            "The receiver takes no metrics there, as Jaeger; each export of them logs an error.",
            "Set OTEL_METRICS_EXPORTER=none, or send metrics to a collector.",
        )
    if probe.status in {404, 405}:
        return error(
            "export.wrong-path",
            what,
            "There is a server, and no OTLP receiver at this path.",
            f"{ENDPOINT} is a base URL, to which /v1/traces is added; "
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is.",
        )
    if probe.status in {401, 403}:
        return error(
            "export.denied",
            what,
            "The receiver wants other credentials.",
            "Check OTEL_EXPORTER_OTLP_HEADERS: name=value,name=value, percent-encoded.",
        )
    return warning(
        "export.status",
        what,
        "The receiver does not take an empty export now.",
        "Look at its log; try again later if it is overloaded.",
    )
