"""An OTLP receiver over HTTP that keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Requests in the order of their arrival: path, headers, and what was in them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._traces: list[ExportTraceServiceRequest] = []
        self._metrics: list[ExportMetricsServiceRequest] = []

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> bool:
        """Keep a request; False if the path is none of OTLP's."""
        self.paths.append(path)
        if path.startswith("/v1/traces"):
            self._traces.append(ExportTraceServiceRequest.FromString(body))
        elif path.startswith("/v1/metrics"):
            self._metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            return False
        self.headers.append(headers)
        return True

    @property
    def spans(self) -> list[Any]:
        """Every span received."""
        return [
            span
            for request in self._traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics received."""
        return {name for _, name in self.metrics_by_service}

    @property
    def metrics_by_service(self) -> set[tuple[str, str]]:
        """The names of all metrics received, each behind the service it came from."""
        return {
            (each.value.string_value, metric.name)
            for request in self._metrics
            for resource in request.resource_metrics
            for each in resource.resource.attributes
            if each.key == "service.name"
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def resource(self) -> dict[str, str]:
        """Text attributes of the resource in the latest traces."""
        attributes = self._traces[-1].resource_spans[0].resource.attributes
        return {each.key: each.value.string_value for each in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on loopback, for as long as the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            known = receiver.take(self.path, body, dict(self.headers.items()))
            self.send_response(200 if known else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
