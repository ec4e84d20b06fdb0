"""Whether the OTLP receiver is there: an empty export to it, within three seconds."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from otel_llm._version import __version__
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.doctor.finding import address
from otel_llm.propagation.headers import header_fields
from otel_llm.providers import exports, target

TIMEOUT_S = 3.0
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENDPOINTS = (ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SIGNALS = ("traces", "metrics")
_SERVICES = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_STATUSES = {"UNIMPLEMENTED": 404, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


class Outcome(StrEnum):
    """How an attempt to export nothing ended."""

    ACCEPTED = "accepted"
    CONNECTED = "connected, and no more was tried"
    STATUS = "refused"
    UNRESOLVED = "the host name is not known"
    UNREACHABLE = "no connection"
    TIMEOUT = "no answer in time"
    TLS = "no secure connection"
    NOT_OTLP = "an answer that is not of this protocol"
    MALFORMED = "not an address"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one signal goes, and with what; only `Probe` is ever shown."""

    signal: str
    protocol: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    insecure: bool = False
    certificate: str | None = None
    client: tuple[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to one attempt; `status` is HTTP's, or the like of it for gRPC."""

    signal: str
    protocol: str
    place: str
    port: int | None
    outcome: Outcome
    status: int | None = None


def targets(env: Mapping[str, str], signals: Iterable[str] = SIGNALS) -> tuple[Target, ...]:
    """Where *signals* are exported to; none without an endpoint in the environment.

    Raises `ConfigurationError` as `configure` does.
    """
    wanted = [each for each in signals if exports(f"OTEL_{each.upper()}_EXPORTER", env)]
    found = {signal: target(signal, None, None, env) for signal in wanted}
    if not any(env.get(name) for name in ENDPOINTS):
        return ()
    return tuple(_described(signal, *where, env) for signal, where in found.items())


def _described(signal: str, protocol: str, url: str | None, env: Mapping[str, str]) -> Target:
    default = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"

    def text(name: str) -> str:
        own = env.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", "").strip()
        return own or env.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()

    certificate = text("CLIENT_CERTIFICATE")
    return Target(
        signal,
        protocol,
        url or (default if protocol == "grpc" else f"{default}/v1/{signal}"),
        header_fields(text("HEADERS")) or {},
        insecure=text("INSECURE").lower() == "true",
        certificate=text("CERTIFICATE") or None,
        client=(certificate, text("CLIENT_KEY") or None) if certificate else None,
    )


def probe(wanted: Sequence[Target], timeout_s: float = TIMEOUT_S) -> tuple[Probe, ...]:
    """Try all of them at once; never raises, and never takes longer than *timeout_s*."""
    results: dict[int, tuple[Outcome, int | None]] = {}

    def attempt(index: int) -> None:
        results[index] = _attempt(wanted[index], timeout_s)

    # Looking up a name cannot be given a limit, so it is left behind in a daemon thread.
    threads = [
        threading.Thread(target=attempt, args=(index,), daemon=True) for index in range(len(wanted))
    ]
    for thread in threads:
        thread.start()
    deadline = _now_s() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - _now_s()))
    late = (Outcome.TIMEOUT, None)
    return tuple(_probe(each, *results.get(i, late)) for i, each in enumerate(wanted))


def _now_s() -> float:
    return SYSTEM_CLOCK.monotonic_ns() / 1e9


def _probe(target: Target, outcome: Outcome, status: int | None) -> Probe:
    try:
        port = _split(target.url).port
    except ValueError:
        port = None
    return Probe(target.signal, target.protocol, address(target.url), port, outcome, status)


def _split(url: str) -> SplitResult:
    return urlsplit(url if "://" in url else f"//{url}")


def _attempt(target: Target, timeout_s: float) -> tuple[Outcome, int | None]:
    try:
        parts = _split(target.url)
        if not parts.hostname or (parts.port or 1) < 1:
            return Outcome.MALFORMED, None
        if target.protocol == "grpc":
            return _over_grpc(target, parts, timeout_s)
        if parts.scheme not in {"http", "https"}:
            return Outcome.MALFORMED, None
        return _over_http(target, parts, timeout_s)
    except URLError as wrong:
        reason = wrong.reason
        return _outcome(reason if isinstance(reason, Exception) else wrong), None
    except (OSError, http.client.HTTPException, ValueError) as wrong:
        return _outcome(wrong), None


def _outcome(wrong: Exception) -> Outcome:
    match wrong:
        case socket.gaierror():
            return Outcome.UNRESOLVED
        case TimeoutError():
            return Outcome.TIMEOUT
        case ssl.SSLError() | FileNotFoundError():  # the latter: a certificate
            return Outcome.TLS
        case http.client.InvalidURL() | UnicodeError():
            return Outcome.MALFORMED
        case http.client.HTTPException() | ConnectionResetError() | BrokenPipeError():
            return Outcome.NOT_OTLP
        case OSError():
            return Outcome.UNREACHABLE
        case _:
            return Outcome.MALFORMED


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would become a GET somewhere else."""

    def redirect_request(self, *_args: Any) -> None:
        """Follow none."""


def _over_http(target: Target, parts: SplitResult, timeout_s: float) -> tuple[Outcome, int | None]:
    """POST an empty protobuf message, which is an export of nothing."""
    user, _, host = parts.netloc.rpartition("@")
    headers = {
        "content-type": "application/x-protobuf",
        "user-agent": f"otel-llm-doctor/{__version__}",
        **({"authorization": f"Basic {_basic(user)}"} if user else {}),
        **target.headers,
    }
    url = parts._replace(netloc=host, fragment="").geturl()
    request = Request(url, data=b"", headers=headers, method="POST")  # noqa: S310 - checked
    opener = build_opener(_NoRedirect, HTTPSHandler(context=_tls(target)))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return Outcome.ACCEPTED, answer.status
    except HTTPError as refusal:
        with refusal:
            return Outcome.STATUS, refusal.code


def _basic(user: str) -> str:
    return base64.b64encode(unquote(user).encode()).decode()


def _tls(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate)
    if target.client:
        context.load_cert_chain(*target.client)
    return context


def _over_grpc(target: Target, parts: SplitResult, timeout_s: float) -> tuple[Outcome, int | None]:
    host, port = parts.hostname or "", parts.port or 443
    socket.create_connection((host, port), timeout_s).close()
    try:
        grpc: Any = import_module("grpc")
    except ImportError:
        return Outcome.CONNECTED, None
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    plain = parts.scheme == "http" or (parts.scheme != "https" and target.insecure)
    with grpc.insecure_channel(place) if plain else _secure(grpc, place, target) as channel:
        export = channel.unary_unary(_SERVICES[target.signal])
        try:
            export(b"", timeout=timeout_s, metadata=tuple(target.headers.items()))
        except grpc.RpcError as refusal:
            return _grpc_outcome(refusal.code().name)
    return Outcome.ACCEPTED, 200


def _secure(grpc: Any, place: str, target: Target) -> Any:
    def read(path: str | None) -> bytes | None:
        return None if path is None else Path(path).read_bytes()

    certificate, key = target.client or (None, None)
    return grpc.secure_channel(
        place,
        grpc.ssl_channel_credentials(read(target.certificate), read(key), read(certificate)),
    )


def _grpc_outcome(code: str) -> tuple[Outcome, int | None]:
    if code == "DEADLINE_EXCEEDED":
        return Outcome.TIMEOUT, None
    if code == "UNAVAILABLE":
        return Outcome.NOT_OTLP, None
    return Outcome.STATUS, _STATUSES.get(code, 500)
