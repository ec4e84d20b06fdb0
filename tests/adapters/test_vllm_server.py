"""The middleware in vLLM's server: added to applications that hold an engine, and to no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

import otel_llm
from otel_llm import config, semconv
from otel_llm.instrumentors import vllm_plugin
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Phase
from tests.emit.builders import written
from tests.fakes import vllm
from tests.fakes.asgi import CHAT, Connection, chat_body
from tests.fakes.vllm import AsyncLLM, Plan, SamplingParams
from tests.servers.builders import PARENT, REQUEST, SERVER

ARGS = SimpleNamespace(served_model_name=["tiny"], otlp_traces_endpoint=None)


@pytest.fixture
def engine(
    monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock
) -> AsyncLLM:
    """A patched engine, and FastAPI patched too."""
    fresh = vllm.installed(monkeypatch)
    otel_llm.instrument(**captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return fresh(clock)


def application(**state: Any) -> FastAPI:
    """A server with a chat route; *state* is what vLLM keeps in it."""
    app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})
    for name, value in state.items():
        setattr(app.state, name, value)

    @app.post(CHAT)
    async def chat(_body: dict[str, Any]) -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            outputs = app.state.engine_client.generate("hi", SamplingParams(), "r0")
            async for output in outputs:
                yield f"data: {json.dumps(output.outputs[0].text)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


def ours(app: FastAPI) -> list[int]:
    """Where our middleware is among those of the application."""
    return [at for at, each in enumerate(app.user_middleware) if each.cls is InferenceMiddleware]


async def test_a_request_through_the_server(
    captured: CapturedTelemetry, engine: AsyncLLM, clock: ManualClock
) -> None:
    """SERVER span, request span and phases; the engine's stamps and our own in one timeline."""
    connection = Connection(chat_body(stream=True))
    await connection.serve(application(engine_client=engine))
    names = ("preprocess", "queue", "prefill", "decode")
    assert [SERVER, f"  {REQUEST}", *[f"    llm.{name}" for name in names]] == captured.tree()
    found = written(captured)
    assert (
        found[semconv.PROVIDER],
        found[semconv.OUTCOME],
        found[semconv.OUTPUT_TOKENS],
    ) == ("vllm", "ok", 4)
    assert found[semconv.UNACCOUNTED_US] == 0


async def test_a_refused_stream(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """The reply is a 400 and no stream: refused, with the engine's reason, and not incomplete."""
    engine.plan = Plan(fail_at=0, error=vllm.VLLMValidationError("secret"))
    app = application(engine_client=engine)

    @app.post("/v1/completions")
    async def completions(_body: dict[str, Any]) -> JSONResponse:
        outputs = engine.generate("hi", SamplingParams(), "r0")
        try:
            await anext(outputs)
        except vllm.VLLMValidationError:
            return JSONResponse({}, 400)
        return JSONResponse({})

    await Connection(chat_body(stream=True)).serve(app, path="/v1/completions")
    found = written(captured, "text_completion tiny")
    assert (
        found[semconv.OUTCOME],
        found[semconv.ERROR_TYPE],
    ) == ("rejected", "tests.fakes.vllm.VLLMValidationError")
    assert semconv.INCOMPLETE not in found


@pytest.mark.parametrize(
    "state", [{"engine_client": object()}, {"args": ARGS}], ids=["engine", "arguments"]
)
def test_an_application_that_serves_vllm(engine: AsyncLLM, state: dict[str, Any]) -> None:
    """Known by its engine, or by its arguments where the stack is built before the engine."""
    app = application(**state)
    app.build_middleware_stack()
    assert ours(app) == [0]


@pytest.mark.parametrize(
    "state",
    [{}, {"engine_client": None}, {"args": SimpleNamespace(port=8000)}, {"args": None}],
    ids=repr,
)
def test_any_other_application(engine: AsyncLLM, state: dict[str, Any]) -> None:
    """It is not ours to touch."""
    app = application(**state)
    app.build_middleware_stack()
    assert ours(app) == []


def test_it_is_the_outermost(engine: AsyncLLM) -> None:
    """Other middleware's time belongs to the request."""
    app = application(engine_client=engine)

    @app.middleware("http")
    async def theirs(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app.build_middleware_stack()
    assert (ours(app), len(app.user_middleware)) == ([0], 2)


def test_a_stack_that_is_built_again(engine: AsyncLLM) -> None:
    """One middleware, however often."""
    app = application(engine_client=engine)
    app.build_middleware_stack()
    app.build_middleware_stack()
    assert ours(app) == [0]


def test_not_after_uninstrument(engine: AsyncLLM) -> None:
    """Applications built later are left alone."""
    otel_llm.uninstrument()
    app = application(engine_client=engine)
    app.build_middleware_stack()
    assert ours(app) == []


async def test_a_server_that_goes_on_after_uninstrument(
    engine: AsyncLLM, captured: CapturedTelemetry
) -> None:
    """Its middleware lets everything through and writes no further span."""
    app = application(engine_client=engine)
    app.middleware_stack = app.build_middleware_stack()
    otel_llm.uninstrument()
    connection = await Connection().serve(app)
    assert (captured.spans, connection.sent[0]["status"]) == ([], 200)
    assert config.RUNTIME.telemetry is None


@pytest.mark.parametrize(("endpoint", "told"), [("localhost:4317", True), (None, False)])
async def test_vllms_own_tracing(
    engine: AsyncLLM, captured: CapturedTelemetry, endpoint: str | None, told: bool
) -> None:
    """Where vLLM writes spans of its own, they are told of ours in the request's headers."""
    args = SimpleNamespace(served_model_name=["tiny"], otlp_traces_endpoint=endpoint)
    app, seen = application(engine_client=engine, args=args), []

    @app.middleware("http")
    async def look(request: Any, call_next: Any) -> Any:
        seen.append("traceparent" in request.headers)
        return await call_next(request)

    await Connection().serve(app)
    assert [told] == seen


@pytest.mark.parametrize(
    ("endpoint", "source", "ours"),
    [
        ("localhost:4317", 'start_span("vllm_prefill")', False),
        ("localhost:4317", 'start_span("llm_request")', True),
        (None, 'start_span("vllm_prefill")', True),
    ],
    ids=["newer", "today", "not traced"],
)
async def test_a_vllm_that_writes_phase_spans(
    engine: AsyncLLM,
    captured: CapturedTelemetry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str | None,
    source: str,
    ours: bool,
) -> None:
    """Ours would be doubles and are left out, if it traces at all; the summary stays."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "tracing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    args = SimpleNamespace(served_model_name=["tiny"], otlp_traces_endpoint=endpoint)
    await Connection(chat_body(stream=True)).serve(application(engine_client=engine, args=args))
    assert any("llm." in each for each in captured.tree()) is ours
    assert written(captured)[semconv.phase_us(Phase.PREFILL)] == 200_000


async def test_settings_of_the_host(
    monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock
) -> None:
    """Trust and identity keys apply to vLLM's server as to any other."""
    monkeypatch.setenv("OTEL_LLM_CONTEXT_KEYS", "tenant=header:x-tenant")
    engine = vllm.installed(monkeypatch)(clock)
    otel_llm.instrument(**captured.providers, trust_remote=False)
    app = application(engine_client=engine)
    await Connection().serve(app, headers={"traceparent": PARENT, "x-tenant": "acme"})
    server = captured.span(SERVER)
    assert (server.parent, len(server.links)) == (None, 1)
    assert written(captured)["otel_llm.tenant"] == "acme"


async def test_settings_given_after_the_plugin(
    monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock
) -> None:
    """VLLM loads the plugin by itself; what the user says in code counts all the same."""
    engine = vllm.installed(monkeypatch)(clock)
    vllm_plugin()
    otel_llm.instrument(trust_remote=False, **captured.providers)
    await Connection().serve(application(engine_client=engine), headers={"traceparent": PARENT})
    assert captured.span(SERVER).parent is None


async def test_switched_off_and_on_again(
    captured: CapturedTelemetry, engine: AsyncLLM, clock: ManualClock
) -> None:
    """An application that was built before goes on with the new telemetry, once."""
    app = application(engine_client=engine)
    await Connection(chat_body(stream=True)).serve(app)
    otel_llm.uninstrument()
    await Connection(chat_body(stream=True)).serve(app)
    assert captured.tree().count(SERVER) == 1
    again = captured_telemetry(clock=clock)
    otel_llm.instrument(**again.providers)
    config.RUNTIME.telemetry = again.telemetry
    await Connection(chat_body(stream=True)).serve(app)
    assert captured.tree().count(SERVER) == 1
    assert again.tree()[:2] == [SERVER, f"  {REQUEST}"]
