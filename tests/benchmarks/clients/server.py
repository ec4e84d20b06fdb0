"""A server on loopback that answers as the name of the model says, at known times."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.benchmarks.clients.replies import Script, answer


class FakeServer(ThreadingHTTPServer):
    """Speaks Ollama's and OpenAI's streams; keeps the headers and body of the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.last_headers: dict[str, str] = {}
        self.last_body: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Readers that leave are what is tested."""


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A running server."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.last_headers = {name.lower(): text for name, text in self.headers.items()}
        self.server.last_body = body
        script = Script.of(body["model"])
        time.sleep(script.headers / 1000)
        if script.status == 200:
            with suppress(ConnectionError):
                self._stream(script, *answer(self.path, body))
        else:
            self._refuse(script.status)

    def _refuse(self, status: int) -> None:
        content = b'{"error": {"message": "not today", "type": "server_error"}}'
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, script: Script, kind: str, pieces: tuple[bytes, ...]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        due = time.perf_counter() + script.first / 1000
        for number, piece in enumerate(pieces):
            if number == script.cut:
                self.close_connection = True
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            due += script.gap / 1000
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""
