"""Collectors in trouble: one that never answers, one that trickles, one that is not there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TRICKLE = b"HTTP/1.1 200 OK\r\nx-slow: " + b"a" * 60_000
UNRESOLVED = "http://collector.invalid:4318"


def refusing() -> str:
    """The URL of a port where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@contextmanager
def hanging() -> Iterator[str]:
    """A collector that accepts and never answers; gives its URL."""
    with _serving(b"") as url:
        yield url


@contextmanager
def trickling() -> Iterator[str]:
    """A collector that answers a byte each tenth of a second, for hours; gives its URL."""
    with _serving(TRICKLE) as url:
        yield url


@contextmanager
def _serving(answer: bytes) -> Iterator[str]:
    over = threading.Event()
    held: list[socket.socket] = []

    def drip(peer: socket.socket) -> None:
        with suppress(OSError):
            for byte in answer:
                if over.wait(0.1):
                    return
                peer.send(bytes([byte]))

    def accept() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                held.append(peer)
                threading.Thread(target=drip, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for each in held:
                each.close()
