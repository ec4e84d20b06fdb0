"""A server that reads on in the context of an earlier request of the same connection."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

from otel_llm.api import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry, captured_telemetry

LARGE, SMALL = 200_000, 10
"""uvicorn stops reading at 64 KiB, and goes on from within the request that has read them."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body and answers."""
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body"})


@contextmanager
def serving(captured: CapturedTelemetry) -> Iterator[int]:
    """A uvicorn, and its port; afterwards all its requests have ended."""
    app: Any = InferenceMiddleware(application, telemetry=captured.telemetry)
    config = uvicorn.Config(app, http="h11", log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        running.should_exit = True
        thread.join()


def test_requests_of_one_connection_have_traces_of_their_own() -> None:
    """Each belongs to its own caller, and has a SERVER span of its own."""
    captured = captured_telemetry()
    with serving(captured) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number, size in enumerate((LARGE, SMALL, SMALL), 1):
            parent = f"00-{number:032x}-{number:016x}-01"
            body = '{"model": "m", "pad": "' + "x" * size + '"}'
            headers = {"traceparent": parent, "content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            connection.getresponse().read()
        connection.close()
    spans = [each for each in captured.spans if not each.name.startswith("llm.")]
    found = sorted((each.context.trace_id, each.kind.name) for each in spans if each.context)
    assert [(n, kind) for n in (1, 2, 3) for kind in ("INTERNAL", "SERVER")] == found
