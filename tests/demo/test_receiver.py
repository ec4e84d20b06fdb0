"""The demo's OTLP receiver, over real connections."""

from __future__ import annotations

import gzip
import http.client
import socket
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

import otel_llm
from otel_llm.demo import receiver as module
from otel_llm.demo.forward import Forward
from otel_llm.demo.otlp import span_records
from otel_llm.demo.receiver import Receiver
from otel_llm.doctor.finding import address
from otel_llm.errors import ConfigurationError

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that sends nothing on."""
    with Receiver() as found:
        yield found


def post(receiver: Receiver, body: bytes = b"", path: str = "/v1/traces", **headers: str) -> int:
    """The status that *body* is answered with."""
    address = urlsplit(receiver.endpoint)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    given = PROTOBUF | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, body, given)
    status = connection.getresponse().status
    connection.close()
    return status


def request(name: str = "chat tiny") -> bytes:
    """An export of one span that has every kind of value."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

    found = service.ExportTraceServiceRequest()
    of_resource = found.resource_spans.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "app"
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = "otel_llm"
    span = of_scope.spans.add(name=name, kind=3, trace_id=b"\1" * 16, span_id=b"\2" * 8)
    span.start_time_unix_nano, span.end_time_unix_nano = 10, 20
    span.status.code = 2
    span.attributes.add(key="count").value.int_value = 3
    span.attributes.add(key="list").value.array_value.values.add().string_value = "stop"
    pair = span.attributes.add(key="map").value.kvlist_value.values.add(key="share")
    pair.value.double_value = 0.5
    span.attributes.add(key="nothing")
    return found.SerializeToString()


def test_a_span_becomes_a_record(receiver: Receiver) -> None:
    """Ids in hex, times in nanoseconds, words in lower case, values as Python has them."""
    assert post(receiver, request()) == 200
    (record,) = span_records(receiver.taken())
    assert (record.trace_id, record.span_id, record.parent_span_id) == ("01" * 16, "02" * 8, None)
    assert (record.start_ns, record.end_ns) == (10, 20)
    assert (record.name, record.kind, record.status) == ("chat tiny", "client", "error")
    assert record.attributes == {
        "count": 3,
        "list": ["stop"],
        "map": {"share": 0.5},
        "nothing": None,
    }
    assert record.resource == {"service.name": "app"}
    assert record.scope == "otel_llm"


def test_each_request_is_taken_once(receiver: Receiver) -> None:
    """The second call has nothing that the first one had."""
    post(receiver, request())
    assert len(receiver.taken()) == 1
    assert receiver.taken() == []


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_packed_bodies_are_read(receiver: Receiver, pack: object) -> None:
    """Exporters may compress."""
    encoding = "gzip" if pack is gzip.compress else "deflate"
    assert post(receiver, pack(request()), content_encoding=encoding) == 200  # type: ignore[operator]
    assert len(list(span_records(receiver.taken()))) == 1


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b"\xff\xff\xff", {}),
        (400, b"no gzip", {"Content_Encoding": "gzip"}),
        (400, gzip.compress(request())[:-9], {"Content_Encoding": "gzip"}),
        (400, request(), {"Content_Encoding": "br"}),
        (413, gzip.compress(bytes(module.LARGEST_BODY + 1)), {"Content_Encoding": "gzip"}),
        (415, b"{}", {"Content_Type": "application/json"}),
    ],
)
def test_what_is_no_export_is_refused(
    receiver: Receiver, status: int, body: bytes, headers: dict[str, str]
) -> None:
    """With the status that says why, and nothing of it is kept."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    assert post(receiver, body, **given) == status
    assert receiver.taken() == []


def test_another_path_is_not_found(receiver: Receiver) -> None:
    """404."""
    assert post(receiver, path="/v1/nothing") == 404


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"Content-Length: {module.LARGEST_BODY + 1}\r\n", "413"),
        ("Transfer-Encoding: chunked\r\n", "411"),
        ("Content-Length: -1\r\n", "411"),
    ],
)
def test_a_body_of_no_known_or_too_large_size_is_not_read(
    receiver: Receiver, head: str, status: str
) -> None:
    """It is refused at its head, and the connection closed."""
    address = urlsplit(receiver.endpoint)
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        connection.sendall(f"POST /v1/traces HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        answer = connection.makefile("rb").read().decode()
    assert answer.split()[1] == status


def test_no_more_is_kept_than_the_bound(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes later is accepted, counted and left out."""
    monkeypatch.setattr(module, "MOST_BYTES", len(request()))
    assert [post(receiver, request()) for _ in range(3)] == [200] * 3
    assert (len(receiver.taken()), receiver.left_out) == (1, 2)


def test_the_ordinary_exporter_is_understood(receiver: Receiver) -> None:
    """A request traced with `configure(endpoint=...)` arrives with its summary."""
    otel_llm.configure(endpoint=receiver.endpoint, engines=[])
    with otel_llm.trace_request("chat", model="tiny", provider="toy", side="client"):
        pass
    otel_llm.uninstrument()
    spans = {each.name: each for each in span_records(receiver.taken())}
    assert spans["chat tiny"].attributes["otel_llm.side"] == "client"


class Endpoint:
    """An OTLP endpoint that answers with one status and remembers what it was sent."""

    def __init__(self, status: int) -> None:
        self.seen: list[tuple[str, bytes, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append((self.path, body, headers))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(params=[200])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """An endpoint; its status is the parameter."""
    found = Endpoint(request.param)
    yield found
    found.close()


def test_traces_and_metrics_are_sent_on_byte_for_byte(endpoint: Endpoint) -> None:
    """Bodies as they came, also packed ones, and with the headers of the endpoint."""
    packed = gzip.compress(request())
    forward = Forward(endpoint.url + "/base/", {"authorization": "s3cret"})
    with Receiver(forward) as receiver:
        post(receiver, packed, content_encoding="gzip")
        post(receiver, b"metrics", "/v1/metrics")
    forward.close()
    assert [(path, body) for path, body, _ in endpoint.seen] == [
        ("/base/v1/traces", packed),
        ("/base/v1/metrics", b"metrics"),
    ]
    headers = endpoint.seen[0][2]
    assert (headers["content-encoding"], headers["authorization"]) == ("gzip", "s3cret")
    assert forward.told() == f"Sent on to {endpoint.url}/base: 2 requests."


@pytest.mark.parametrize("endpoint", [503], indirect=True)
def test_what_the_endpoint_refused_is_told(endpoint: Endpoint) -> None:
    """How many, and its status; no header."""
    forward = Forward(endpoint.url, {"authorization": "s3cret"})
    forward.put("/v1/metrics", b"", PROTOBUF)
    forward.close()
    assert (
        forward.told()
        == f"Sent on to {endpoint.url}: 0 requests; 1 failed (1 x metrics: status 503)."
    )


def test_an_endpoint_that_is_not_there_is_told() -> None:
    """How many, and the error's class."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        forward = Forward(f"http://127.0.0.1:{held.getsockname()[1]}")
        forward.put("/v1/traces", b"", PROTOBUF)
        forward.close()
    assert "1 failed (1 x traces: ConnectionError)" in forward.told()


@pytest.mark.parametrize("url", ["localhost:4318", "http://", "ftp://x", "http://x:0", "http://["])
def test_an_endpoint_that_is_no_url_is_told(url: str) -> None:
    """With what it must look like."""
    with pytest.raises(ConfigurationError, match="--otlp must be a URL like http"):
        Forward(url)


def test_a_password_is_not_shown() -> None:
    """Neither is the name that goes with it; the rest of the address is."""
    assert address("http://user:s3cret@127.0.0.1:4318/v1") == "http://127.0.0.1:4318/v1"
    assert address("http://127.0.0.1:4318") == "http://127.0.0.1:4318"
