"""A small HTTP endpoint for Prometheus, for processes that have none."""

from __future__ import annotations

import gzip
import logging
import os
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from otel_llm.errors import ConfigurationError, MissingDependencyError
from otel_llm.export import forks

try:
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted
except ImportError:
    raise MissingDependencyError("prometheus-client", extra="prometheus") from None

_log = logging.getLogger("otel_llm")
LOOPBACK = "127.0.0.1"
MOST_AT_ONCE = 8
"""More connections than this at a time are closed unanswered."""
PATIENCE_S = 10
"""Longest wait for a client to send or take something, in seconds."""
_ADDRESS = re.compile(r"(?:(?:\[([^\]]+)\]|([^:]*)):)?([0-9]{1,5})")


class MetricsServer:
    """An endpoint that answers until it is closed.

    `address` is the host and the port that it listens on, the latter chosen by the system if the
    port given was 0.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._server = _Server(host, port, registry)
        self.address: tuple[str, int] = host, self._server.socket.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="otel_llm-metrics", daemon=True
        )
        self._thread.start()
        self._pid = os.getpid()
        forks.follow(self)

    def after_fork(self) -> None:
        """Let go of the socket in a child: the parent answers."""
        self._server.server_close()

    def shutdown(self) -> None:
        """Nothing is to be sent when a process ends."""

    def close(self) -> None:
        """Stop listening; a second call does nothing, nor does one in a child."""
        if self._pid != os.getpid():  # the thread that would have to stop is the parent's
            self._server.server_close()
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(address: str | int, registry: CollectorRegistry | None = None) -> MetricsServer:
    """Answer GET and HEAD of `/metrics` in a thread, in OpenMetrics if the client accepts it.

    Args:
        address: `host:port`, or a port alone, which listens on loopback only. A process that is
            forked later does not answer; each process needs a port of its own.
        registry: What is shown; `prometheus_client.REGISTRY` by default.

    Raises:
        ConfigurationError: This is no address, or it cannot be listened on.
    """
    found = _ADDRESS.fullmatch(str(address).strip())
    if found is None or int(found[3]) > 65_535:
        raise ConfigurationError(f"{address!r} is no address for metrics; it must be host:port")
    host, port = found[1] or found[2] or LOOPBACK, int(found[3])
    try:
        return MetricsServer(host, port, REGISTRY if registry is None else registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be served on {address!r}: {error.strerror}"
        ) from None


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry = registry
        self._free = threading.Semaphore(MOST_AT_ONCE)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a client of the metrics endpoint went away")


class _Handler(BaseHTTPRequestHandler):
    """One request a connection: HTTP/1.0 closes it."""

    server: _Server
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"metrics are at /metrics\n")
            return
        try:
            content_type, body = page(self.server.registry, self._header("accept"))
        except Exception as error:  # noqa: BLE001 - a collector of anybody's
            _log.warning("metrics could not be collected (%s)", type(error).__name__)
            self._answer(500, b"metrics could not be collected\n")
            return
        if gzip_accepted(self._header("accept-encoding")):
            self._answer(200, gzip.compress(body, 1), content_type, {"content-encoding": "gzip"})
        else:
            self._answer(200, body, content_type)

    do_HEAD = do_GET  # noqa: N815 - the base class wants these names

    def _refuse(self) -> None:
        self._answer(405, b"", headers={"allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _header(self, name: str) -> str:
        return ",".join(self.headers.get_all(name, ()))

    def _answer(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        given = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """The `server` header; not which Python this is."""
        return "otel_llm"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: scrapes come every few seconds."""


def page(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Content type and text in the format that *accept* asks for."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return content_type, encode(registry)
