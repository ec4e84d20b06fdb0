"""Sending to a receiver that answers, refuses, is slow, or is not there."""

from __future__ import annotations

import gzip
import logging
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_llm import ConfigurationError
from otel_llm.export import http
from otel_llm.export.http import HttpSpanExporter

OK, FAILED = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
Answer = tuple[int, dict[str, str], bytes]
_INFLATE: dict[str, Any] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


class Scripted:
    """A receiver that gives prepared answers, and 200 when it has none left."""

    def __init__(self, *answers: int | Answer) -> None:
        self.answers = [a if isinstance(a, tuple) else (a, {}, b"") for a in answers]
        self.headers: list[dict[str, str]] = []
        self.names: list[list[str]] = []
        self.url = ""
        self.port = 0

    def take(self, headers: dict[str, str], body: bytes) -> Answer:
        """Keep one request, and answer it."""
        self.headers.append(headers)
        plain = _INFLATE.get(headers.get("content-encoding", ""), lambda b: b)(body)
        request = ExportTraceServiceRequest.FromString(plain)
        scopes = (s for r in request.resource_spans for s in r.scope_spans)
        self.names.append([span.name for s in scopes for span in s.spans])
        return self.answers.pop(0) if self.answers else (200, {}, b"")

    @contextmanager
    def listening(self, port: int = 0) -> Iterator[HttpSpanExporter]:
        """Serve for as long as the block, on any port or this one; gives an exporter."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                given = {name.lower(): value for name, value in self.headers.items()}
                status, headers, answer = receiver.take(given, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_args: Any) -> None:
                """Print nothing."""

        with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            self.port = server.server_port
            self.url = f"http://127.0.0.1:{self.port}/v1/traces"
            try:
                yield HttpSpanExporter(self.url, {})
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come soon."""
    monkeypatch.setattr(http, "FIRST_BACKOFF_S", 0.01)


def made(*names: str) -> Any:
    """Finished spans."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for name in names:
        provider.get_tracer("app").start_span(name).end()
    return memory.get_finished_spans()


def test_spans_arrive() -> None:
    """As protobuf, with a name of ours; nothing is sent for nothing."""
    receiver = Scripted()
    with receiver.listening() as exporter:
        assert (exporter.export(made("a", "b")), exporter.export([])) == (OK, OK)
        exporter.shutdown()
    assert receiver.names == [["a", "b"]]
    (headers,) = receiver.headers
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["user-agent"].startswith("otel-llm-python/")


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_tries_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """After an answer that may pass, with nothing lost and nothing said."""
    receiver = Scripted(status, status)
    with receiver.listening() as exporter:
        assert OK is exporter.export(made("a"))
        exporter.shutdown()
    assert receiver.names == [["a"]] * 3
    assert caplog.records == []


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
def test_refused(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Once is enough; the log says how many spans were lost, where and why."""
    receiver = Scripted(status)
    with receiver.listening() as exporter:
        assert FAILED is exporter.export(made("a", "b"))
        exporter.shutdown()
    assert len(receiver.names) == 1
    (message,) = caplog.messages
    assert f"2 spans were lost (export_failed 2): {receiver.url}: HTTP status {status}" in message


def test_waits_as_told() -> None:
    """`Retry-After` in seconds."""
    receiver = Scripted((429, {"retry-after": "1"}, b""))
    with receiver.listening() as exporter:
        started = time.monotonic()
        assert OK is exporter.export(made("a"))
        assert time.monotonic() - started >= 1
        exporter.shutdown()


def test_not_longer_than_the_timeout() -> None:
    """A receiver that asks for more patience than there is."""
    receiver = Scripted((503, {"retry-after": "3600"}, b""))
    with receiver.listening() as exporter:
        assert FAILED is exporter.export(made("a"))
        exporter.shutdown()
    assert len(receiver.names) == 1


def test_shutdown_ends_the_waiting() -> None:
    """A process that exits does not sit out a pause between retries."""
    receiver = Scripted((503, {"retry-after": "9"}, b""))
    with receiver.listening() as exporter:
        threading.Timer(0.2, exporter.shutdown).start()
        started = time.monotonic()
        assert FAILED is exporter.export(made("a"))
        assert time.monotonic() - started < 8


def test_nobody_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """Tried until the timeout; the log names the error, but neither user nor password."""
    exporter = HttpSpanExporter(
        "http://user:secret@127.0.0.1:9/v1/traces?token=secret",
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"},
    )
    assert FAILED is exporter.export(made("a"))
    exporter.shutdown()
    (message,) = caplog.messages
    assert "http://127.0.0.1:9/v1/traces: ConnectionError" in message
    assert "secret" not in message


def test_after_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and said so."""
    receiver = Scripted()
    with receiver.listening() as exporter:
        exporter.shutdown()
        assert FAILED is exporter.export(made("a"))
    assert receiver.names == []
    assert "shut down" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "deflate"),
    ],
)
def test_compression(name: str, value: str) -> None:
    """By the standard variables."""
    receiver = Scripted()
    with receiver.listening():
        exporter = HttpSpanExporter(receiver.url, {name: value})
        assert OK is exporter.export(made("a"))
        exporter.shutdown()
    assert receiver.names == [["a"]]
    assert receiver.headers[0]["content-encoding"] == value


def test_headers_for_traces_come_first() -> None:
    """Those of all signals are then not used; percent signs are decoded."""
    receiver = Scripted()
    with receiver.listening():
        environ = {
            "OTEL_EXPORTER_OTLP_HEADERS": "x-all=1",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Bearer%20k,x-tenant=a",
        }
        exporter = HttpSpanExporter(receiver.url, environ)
        assert OK is exporter.export(made("a"))
        exporter.shutdown()
    (headers,) = receiver.headers
    assert (headers["authorization"], headers["x-tenant"]) == ("Bearer k", "a")
    assert "x-all" not in headers


@pytest.mark.parametrize(
    ("name", "value"),
    [("COMPRESSION", "zstd"), ("TIMEOUT", "soon"), ("TIMEOUT", "0"), ("TIMEOUT", "nan")],
)
def test_wrong_settings(name: str, value: str) -> None:
    """Told when the exporter is made, with the variable's name."""
    with pytest.raises(ConfigurationError, match=f"OTEL_EXPORTER_OTLP_{name} is '{value}'"):
        HttpSpanExporter(None, {f"OTEL_EXPORTER_OTLP_{name}": value})


def test_certificates() -> None:
    """The receiver's authority, and our own certificate with its key."""
    names = {"CERTIFICATE": "ca.pem", "CLIENT_CERTIFICATE": "me.pem", "CLIENT_KEY": "me.key"}
    exporter = HttpSpanExporter(
        None, {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in names.items()}
    )
    session = exporter._session
    assert (session.verify, session.cert) == ("ca.pem", ("me.pem", "me.key"))
    exporter.shutdown()


def test_partial_success(caplog: pytest.LogCaptureFixture) -> None:
    """Spans that the receiver rejected are told of, with its reason."""
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    with Scripted((200, {}, answer)).listening() as exporter:
        assert OK is exporter.export(made("a"))
        exporter.shutdown()
    (message,) = caplog.messages
    assert "3 spans were lost (rejected 3)" in message
    assert "rejects them: too old" in message
    assert exporter.losses.counts["rejected"] == 3


def test_a_remark(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that takes all and warns is quoted once."""
    partial = ExportTracePartialSuccess(error_message="use gzip")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    with Scripted((200, {}, answer), (200, {}, answer)).listening() as exporter:
        assert (exporter.export(made("a")), exporter.export(made("b"))) == (OK, OK)
        exporter.shutdown()
    (message,) = caplog.messages
    assert message.endswith("/v1/traces says: use gzip")


@pytest.mark.parametrize("answer", [b"\xff\xff", b"<html>", b"{}", b"\x00" * 100_000])
def test_an_answer_that_is_none(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A status of success is believed, whatever stands below it."""
    caplog.set_level(logging.WARNING)
    with Scripted((200, {}, answer)).listening() as exporter:
        assert OK is exporter.export(made("a"))
        exporter.shutdown()
    assert caplog.records == []
