"""A small OTLP/HTTP receiver on loopback: keeps the traces it is sent, and passes everything on."""

from __future__ import annotations

import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from otel_llm.demo.forward import Forward
from otel_llm.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LARGEST_BODY = 16 * 2**20
"""Bytes of one request, also after it was unpacked."""
MOST_BYTES = 256 * 2**20
"""Bytes of traces that are kept; what comes later is counted and left out."""
TRACES, METRICS, LOGS = "/v1/traces", "/v1/metrics", "/v1/logs"
_PROTOBUF = "application/x-protobuf"
_PASSED_ON = ("content-type", "content-encoding", "user-agent")
_IDLE_S = 60.0


class Receiver:
    """Listens on a free port of 127.0.0.1 until it is closed; use it as a `with` block.

    Args:
        forward: Where every request is sent on to, too.

    Raises:
        MissingDependencyError: The package with OTLP's messages is not installed.
    """

    def __init__(self, forward: Forward | None = None) -> None:
        self._parse = _parser()
        self._forward = forward
        self._lock = Lock()
        self._traces: list[ExportTraceServiceRequest] = []
        self._bytes = 0
        self.left_out = 0
        """Requests that came when enough was kept."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        """Its base URL, for `configure(endpoint=...)`."""
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; what was received stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def taken(self) -> list[ExportTraceServiceRequest]:
        """The requests with traces that came since the last call."""
        with self._lock:
            found, self._traces = self._traces, []
        return found

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Keep one request and pass it on; returns the status to answer."""
        if path == TRACES:
            packed = headers.get("content-encoding", "identity").lower()
            try:
                request = self._parse(_unpacked(body, packed))
            except OverflowError:
                return 413
            except (ValueError, zlib.error):
                return 400
            self._keep(request, len(body))
        if self._forward is not None:
            passed = {name: headers[name] for name in _PASSED_ON if name in headers}
            self._forward.put(path, body, passed)
        return 200

    def _keep(self, request: ExportTraceServiceRequest, size: int) -> None:
        with self._lock:
            if self._bytes + size > MOST_BYTES:
                self.left_out += 1
            else:
                self._bytes += size
                self._traces.append(request)


def _parser() -> Any:
    """What makes a message of bytes; it raises `ValueError` for bytes that are none."""
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError:
        raise MissingDependencyError("opentelemetry-proto", extra="demo") from None

    def parse(body: bytes) -> ExportTraceServiceRequest:
        try:
            return ExportTraceServiceRequest.FromString(body)
        except DecodeError:
            raise ValueError("not an export request") from None

    return parse


def _unpacked(body: bytes, encoding: str) -> bytes:
    """*body* without its compression; raises `OverflowError` if it is too large then."""
    if encoding in {"identity", ""}:
        return body
    if encoding not in {"gzip", "deflate"}:
        raise ValueError(f"content-encoding {encoding}")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out itself which of the two it is
    found = unpack.decompress(body, LARGEST_BODY + 1)
    if len(found) > LARGEST_BODY:
        raise OverflowError("too large")
    if not unpack.eof:
        raise ValueError("cut off")
    return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: _Server

    def do_POST(self) -> None:
        """Take one export."""
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            self._answer(411, close=True)
        elif int(length) > LARGEST_BODY:
            self._answer(413, close=True)
        else:
            body = self.rfile.read(int(length))
            self._answer(self._status(body))

    def _status(self, body: bytes) -> int:
        if self.path not in {TRACES, METRICS, LOGS}:
            return 404
        if self.headers.get_content_type() != _PROTOBUF:
            return 415
        headers = {name.lower(): value for name, value in self.headers.items()}
        return self.server.receiver.take(self.path, body, headers)

    def _answer(self, status: int, *, close: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", _PROTOBUF)
        self.send_header("Content-Length", "0")
        if close:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Nothing is logged."""
