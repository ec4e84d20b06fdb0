"""An OTLP receiver over gRPC that keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from tests.fakes.otlp import Receiver

SERVICES = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}


@contextmanager
def receiving_rpcs(*, hanging: bool = False) -> Iterator[Receiver]:
    """A receiver on loopback, for as long as the block.

    If it is *hanging*, it neither answers nor keeps the first call.
    """
    over = threading.Event()
    first = iter([hanging])

    def taking(signal: str) -> Callable[[bytes, Any], bytes]:
        def export(body: bytes, _context: Any) -> bytes:
            if next(first, False):
                over.wait()
            else:
                receiver.take(f"/v1/{signal}", body, {})
            return b""

        return export

    pool = ThreadPoolExecutor(8)
    server = grpc.server(pool)
    for signal, service in SERVICES.items():
        handler = grpc.unary_unary_rpc_method_handler(taking(signal))
        handlers = grpc.method_handlers_generic_handler(service, {"Export": handler})
        server.add_generic_rpc_handlers([handlers])
    receiver = Receiver(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        yield receiver
    finally:
        over.set()
        server.stop(None).wait()
        pool.shutdown()
