"""What emission, servers, adapters and set-up still get wrong; each with the reason it is wrong.

Every test here fails today. When a fault is mended, its test moves to the file of its part.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.trace import SpanKind

from otel_llm.testing import CapturedTelemetry
from tests.fakes.asgi import CHAT
from tests.servers.builders import PARENT, serve


def suspect(reason: str) -> pytest.MarkDecorator:
    """The test fails, and why."""
    return pytest.mark.xfail(strict=True, reason=reason)


class TestServers:
    """The ASGI middleware."""

    @suspect("FastAPI extracts the parent from the headers again, and makes a second SERVER span")
    async def test_around_an_application_with_fastapis_own_tracing(
        self, captured: CapturedTelemetry
    ) -> None:
        """Exactly one, also where the middleware is wrapped around everything."""
        own = {"tracing": True, "metrics": False, "logs": False, "auto_configure": False}
        app = FastAPI(telemetry={**own, "tracer_provider": captured.tracer_provider})

        @app.post(CHAT)
        async def chat(_body: dict[str, Any]) -> dict[str, Any]:
            return {}

        await serve(app, captured, headers={"traceparent": PARENT})
        kinds = [each.kind for each in captured.spans]
        assert kinds.count(SpanKind.SERVER) == 1
