"""How long the body of a request took to come in is seen apart from the rest of preprocess."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.fakes.asgi import Connection, body
from tests.servers.builders import ANSWER, REQUEST, serve

FORM = {"content-type": "multipart/form-data; boundary=x"}


def slow(clock: ManualClock, *parts: bytes) -> Connection:
    """A peer that takes 200 ms for each part of its body."""

    class Slow(Connection):
        """It sends slowly."""

        async def receive(self) -> Any:
            clock.advance(0.2)
            return await super().receive()

    return Slow(body(*parts))


async def upload_us(captured: CapturedTelemetry, connection: Connection, **parts: Any) -> Any:
    """What the request span says of it."""
    name = "transcription" if parts else REQUEST
    await serve(ANSWER, captured, connection, **parts)
    return captured.span(name).attributes.get(semconv.UPLOAD_US)


async def test_a_body_read_ahead(captured: CapturedTelemetry, clock: ManualClock) -> None:
    """From arrival to its last part."""
    found = await upload_us(captured, slow(clock, b'{"model":', b' "tiny"', b"}"))
    assert found == 600_000


async def test_a_body_that_the_application_reads(
    captured: CapturedTelemetry, clock: ManualClock
) -> None:
    """Audio is not read ahead; the application receives the last part itself."""
    parts = {"path": "/v1/audio/transcriptions", "headers": FORM}
    assert await upload_us(captured, slow(clock, b"--x", b"y"), **parts) == 400_000


async def test_a_known_zero(captured: CapturedTelemetry) -> None:
    """It was there at once."""
    assert await upload_us(captured, Connection()) == 0


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions"])
async def test_a_peer_that_leaves_meanwhile(captured: CapturedTelemetry, path: str) -> None:
    """What never came in whole has no length."""
    connection = Connection([{"type": "http.request", "body": b"--x", "more_body": True}])
    connection.leave()
    assert await upload_us(captured, connection, path=path, headers=FORM) is None
