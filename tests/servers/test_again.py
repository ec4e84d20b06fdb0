"""An application that outlives one `configure`."""

from __future__ import annotations

from fastapi import FastAPI

import otel_llm
from tests.fakes.asgi import CHAT, Connection, chat_body
from tests.fakes.otlp import receiving


async def test_switched_off_and_on_again() -> None:
    """Its middleware asks at each request what is in force, so the stack need not be built anew."""
    app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})
    app.add_middleware(otel_llm.InferenceMiddleware, provider="demo")

    @app.post(CHAT)
    async def chat() -> dict[str, str]:
        return {}

    with receiving() as first, receiving() as second:
        for receiver in (first, second):
            otel_llm.configure(endpoint=receiver.url, engines=[], metrics=False)
            await Connection(chat_body()).serve(app)
            otel_llm.uninstrument()
    assert [len(each.spans) for each in (first, second)] == [2, 2]
