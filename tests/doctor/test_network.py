"""What is asked of a receiver, and how its answers are read."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.doctor.finding import address
from otel_llm.doctor.network import Outcome, Probe, Target, probe, targets
from otel_llm.propagation.headers import header_fields
from tests.doctor.builders import answering, listening

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def asked(url: str, protocol: str = "http/protobuf", timeout_s: float = 3.0) -> Probe:
    """The answer for traces."""
    (found,) = probe([Target("traces", protocol, url, {"x-token": "t"})], timeout_s)
    return found


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("status", [301, 401, 404, 503])
def test_a_refusal(status: int) -> None:
    """Its status is kept; a redirection is not followed."""
    with answering(status) as url:
        found = asked(url)
    assert (found.outcome, found.status) == (Outcome.STATUS, status)


def test_an_empty_export_is_sent() -> None:
    """As an exporter would: the path, the type of content, the headers, the user."""
    seen: list[Any] = []
    with answering(200, seen) as url:
        found = asked(url.replace("//", "//me:p%20w@") + "/v1/traces")
    assert found.outcome is Outcome.ACCEPTED
    path, body, headers = seen[0]
    lower = {name.lower(): value for name, value in headers.items()}
    assert (path, body) == ("/v1/traces", b"")
    assert lower["content-type"] == "application/x-protobuf"
    assert lower["x-token"] == "t"
    assert base64.b64decode(lower["authorization"].removeprefix("Basic ")) == b"me:p w"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_receiver_that_hangs(protocol: str) -> None:
    """It is given up in time."""
    before = SYSTEM_CLOCK.monotonic_ns()
    with listening(None) as url:
        assert asked(url, protocol, 0.4).outcome is Outcome.TIMEOUT
    assert SYSTEM_CLOCK.monotonic_ns() - before < 10e9


def test_a_receiver_that_drips() -> None:
    """One that answers a little now and then is given up all the same."""
    before = SYSTEM_CLOCK.monotonic_ns()
    with listening(b"HTTP/1.1 100 Continue\r\n\r\n", times=300) as url:
        assert asked(url, timeout_s=0.4).outcome is Outcome.TIMEOUT
    assert SYSTEM_CLOCK.monotonic_ns() - before < 10e9


@pytest.mark.parametrize("says", [b"", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"])
def test_a_receiver_of_another_protocol(says: bytes) -> None:
    """What a gRPC server says to HTTP/1: nothing, or a frame."""
    with listening(says) as url:
        assert asked(url).outcome is Outcome.NOT_OTLP


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_nobody_listens(protocol: str) -> None:
    """The connection is refused."""
    assert asked(f"http://127.0.0.1:{free_port()}", protocol).outcome is Outcome.UNREACHABLE


def test_a_host_that_does_not_exist() -> None:
    """The name is reserved for never resolving."""
    found = asked("http://otel.invalid:4318")
    assert found.outcome in {Outcome.UNRESOLVED, Outcome.TIMEOUT}


def test_tls_where_there_is_none() -> None:
    """A certificate problem has a name of its own."""
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert asked(url.replace("http:", "https:")).outcome is Outcome.TLS


@pytest.mark.parametrize("url", ["http://", "ftp://host/x", "host:4318", "http://a:b", "http://[1"])
def test_what_is_no_address(url: str) -> None:
    """Nothing is raised for any text."""
    assert asked(url).outcome is Outcome.MALFORMED


@contextmanager
def grpc_receiver(code: Any) -> Iterator[str]:
    """A gRPC server with the trace service, which ends each call with *code*; None accepts."""

    def export(request: bytes, context: Any) -> bytes:
        if code is not None:
            context.abort(code, "s3cret")
        return b""

    handler = grpc.unary_unary_rpc_method_handler(export)
    service, method = TRACES.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, (Outcome.ACCEPTED, 200)),
        (grpc.StatusCode.UNAUTHENTICATED, (Outcome.STATUS, 401)),
        (grpc.StatusCode.PERMISSION_DENIED, (Outcome.STATUS, 403)),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (Outcome.STATUS, 500)),
    ],
)
def test_grpc(code: Any, expected: tuple[Outcome, int]) -> None:
    """An empty export is sent, and its refusal is told in HTTP's words."""
    with grpc_receiver(code) as url:
        found = asked(url, "grpc")
    assert (found.outcome, found.status) == expected


def test_a_grpc_receiver_without_metrics() -> None:
    """As Jaeger: the service is not there."""
    with grpc_receiver(None) as url:
        (found,) = probe([Target("metrics", "grpc", url)])
    assert (found.outcome, found.status) == (Outcome.STATUS, 404)


def test_http_on_a_port_of_grpc() -> None:
    """The usual mistake, with a real gRPC server."""
    with grpc_receiver(None) as url:
        assert asked(url).outcome is Outcome.NOT_OTLP


def test_both_signals_are_asked_at_once() -> None:
    """Two receivers that hang cost the time of one."""
    before = SYSTEM_CLOCK.monotonic_ns()
    with listening(None) as url:
        probe([Target(signal, "http/protobuf", url) for signal in ("traces", "metrics")], 2.0)
    assert SYSTEM_CLOCK.monotonic_ns() - before < 3.8e9


BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        ({BASE: "http://c:1/"}, ["http://c:1/v1/traces", "http://c:1/v1/metrics"]),
        ({BASE: "http://c:1", "OTEL_METRICS_EXPORTER": "none"}, ["http://c:1/v1/traces"]),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/x"},
            ["http://c:1/x", "http://localhost:4318/v1/metrics"],
        ),
        ({BASE: "c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["c:1", "c:1"]),
    ],
)
def test_where_signals_go(variables: dict[str, str], expected: list[str]) -> None:
    """The same places as `configure` sends them to."""
    assert expected == [each.url for each in targets(variables)]


def test_headers_of_one_signal() -> None:
    """A signal's own headers stand for the general ones."""
    variables = {
        BASE: "http://c:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "B=2%203",
    }
    assert [dict(each.headers) for each in targets(variables)] == [{"b": "2 3"}, {"a": "1"}]


@pytest.mark.parametrize(("text", "expected"), [("", {}), ("a=b=c,", {"a": "b=c"}), ("x", None)])
def test_header_fields(text: str, expected: dict[str, str] | None) -> None:
    """Values may hold `=`; a field without it is none."""
    assert expected == header_fields(text)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://u:p@host:1/v1?k=s#f", "http://host:1/v1"),
        ("u:p@host:1", "host:1"),
        ("http://[1", "an address that cannot be read"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, expected: str) -> None:
    """No user, no password, no query, no fragment."""
    assert expected == address(url)
