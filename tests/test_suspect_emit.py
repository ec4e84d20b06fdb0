"""What emission, servers, adapters and set-up still get wrong; each with the reason it is wrong.

Every test here fails today. When a fault is mended, its test moves to the file of its part.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind

import otel_llm
from otel_llm.emit.content import without_binaries
from otel_llm.instrumentors import vllm_plugin
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes import vllm
from tests.fakes.asgi import CHAT, Connection
from tests.servers.builders import ANSWER, PARENT, SERVER, serve


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

    @suspect(
        "telemetry._explain looks for a remote parent; below our SERVER span it is a local one"
    )
    async def test_an_unsampled_caller_is_explained(self, caplog: pytest.LogCaptureFixture) -> None:
        """One debug line says why there are no spans (D-PRO-01)."""
        caplog.set_level(logging.DEBUG, "otel_llm")
        captured = captured_telemetry(sampler=ParentBased(ALWAYS_ON))
        await serve(ANSWER, captured, headers={"traceparent": PARENT[:-1] + "0"})
        assert [each for each in caplog.records if "not sampled" in each.getMessage()]


class TestTrust:
    """`instrument(trust_remote=False)`, said after something was built."""

    @suspect("api.InferenceMiddleware reads the settings when it is made, maybe on import")
    async def test_after_the_middleware_was_made(self, captured: CapturedTelemetry) -> None:
        """`app = InferenceMiddleware(app)` at the top of a module comes before any set-up."""
        app = otel_llm.InferenceMiddleware(ANSWER)
        otel_llm.instrument(engines=[], trust_remote=False, **captured.providers)
        await Connection().serve(app, headers={"traceparent": PARENT})
        assert captured.span(SERVER).parent is None

    @suspect("config.install keeps the Host of whoever patched first, here the plugin")
    async def test_after_vllms_plugin(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """VLLM loads the plugin by itself; what the user says in code counts all the same."""
        vllm.installed(monkeypatch)
        vllm_plugin()
        otel_llm.instrument(trust_remote=False, **captured.providers)
        app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})
        app.state.engine_client = object()
        app.post(CHAT)(_answer)
        await Connection().serve(app, headers={"traceparent": PARENT})
        assert captured.span(SERVER).parent is None


class TestContent:
    """Content, where capture is on."""

    @suspect("content._described knows no length of a text: the Responses API's images")
    def test_an_image_as_a_text(self) -> None:
        """Its length is known, and not zero."""
        part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        assert ", 26 characters>" in without_binaries(part)["image_url"]


async def _answer(_body: dict[str, Any]) -> dict[str, Any]:
    return {}
