"""A load through instrumented clients, a network, the middleware and a simulated server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import ollama
import openai

import otel_llm
from otel_llm import config, semconv
from otel_llm.clients import engines
from otel_llm.servers.asgi import InferenceMiddleware, ServerSettings
from otel_llm.simulator import virtual
from otel_llm.simulator.engine import Engine, EngineConfig
from otel_llm.simulator.hardware import CostModel
from otel_llm.simulator.load import drive
from otel_llm.simulator.serving import DIALECTS, ServingApp, ServingConfig, ServingTruth
from otel_llm.simulator.transport import Delay, InProcessTransport
from otel_llm.simulator.workload import Arrival
from otel_llm.testing import CapturedTelemetry, captured_telemetry

MODEL = "tiny"
URL = "http://127.0.0.1:8000"
COST = CostModel(
    overhead_s=0.002,
    sequence_s=0.0001,
    token_s=0.0002,
    pair_s=2e-9,
    weights_s=0.01,
    kv_token_s=2e-8,
)


def engine_config(**more: Any) -> EngineConfig:
    """A small engine: 12 ms for a step, and room for a few thousand tokens."""
    given = {"num_blocks": 600, "cost": COST, "max_num_seqs": 24, "max_model_len": 6_000}
    return EngineConfig(**given | more)


def app_of(dialect: str, clock: Any, engine: EngineConfig | None = None, **more: Any) -> ServingApp:
    """A server of that dialect for the model `tiny`."""
    settings = more.pop("serving", {})
    config_ = ServingConfig(**{"model": MODEL, "stop_share": 0.5} | settings)
    return DIALECTS[dialect](Engine(engine or engine_config()), config_, clock=clock, **more)


@dataclass
class Seen:
    """One request: what really happened, and what either side wrote about it."""

    truth: ServingTruth
    client: Mapping[str, Any]
    server: Mapping[str, Any]


@dataclass
class Run:
    """A load that is over."""

    seen: list[Seen] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    app: ServingApp | None = None


Send = Callable[[Arrival], Awaitable[object]]
Client = Callable[[InProcessTransport], Send]


def openai_client(transport: InProcessTransport) -> Send:
    """The OpenAI library on `/v1/chat/completions`."""
    http = httpx.AsyncClient(transport=transport)
    client = openai.AsyncOpenAI(
        base_url=f"{URL}/v1", api_key="none", http_client=http, max_retries=0
    )

    async def send(arrival: Arrival) -> None:
        body: dict[str, Any] = {"stream_options": {"include_usage": True}} if arrival.stream else {}
        reply: Any = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": arrival.prompt}],
            max_tokens=arrival.max_tokens,
            stream=arrival.stream,
            **body,
        )
        if arrival.stream:
            async for _ in reply:
                pass

    return send


def ollama_client(transport: InProcessTransport) -> Send:
    """The Ollama library on `/api/chat`."""
    client = ollama.AsyncClient(URL, transport=transport, timeout=600)

    async def send(arrival: Arrival) -> None:
        reply: Any = await client.chat(
            MODEL,
            [{"role": "user", "content": arrival.prompt}],
            stream=arrival.stream,
            options={"num_predict": arrival.max_tokens},
        )
        if arrival.stream:
            async for _ in reply:
                pass

    return send


def tgi_client(transport: InProcessTransport) -> Send:
    """A home-made client on TGI's own routes."""
    client = httpx.AsyncClient(transport=transport, base_url=URL, timeout=600)

    async def send(arrival: Arrival) -> None:
        body = {
            "inputs": arrival.prompt,
            "parameters": {"max_new_tokens": arrival.max_tokens, "details": True},
        }
        path = "/generate_stream" if arrival.stream else "/generate"
        with otel_llm.trace_request(
            "text_completion", model=MODEL, provider="tgi", side="client"
        ) as traced:
            async with client.stream("POST", path, json=body, headers=traced.headers()) as reply:
                traced.response(reply)
                async for _ in reply.aiter_bytes():
                    pass

    return send


def run(
    dialect: str,
    client: Client,
    arrivals: Sequence[Arrival],
    *,
    delay: Delay | None = None,
    **app: Any,
) -> Run:
    """Run the load on virtual time, and bring the truth and both sides' spans together."""
    return virtual.run(_run(dialect, client, arrivals, delay, app))


async def _run(
    dialect: str,
    client: Client,
    arrivals: Sequence[Arrival],
    delay: Delay | None,
    more: dict[str, Any],
) -> Run:
    clock = virtual.VirtualClock(asyncio.get_running_loop())
    captured = captured_telemetry(clock=clock)
    engines.forget()
    otel_llm.instrument(engines=["openai", "ollama"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    app = app_of(dialect, clock, **more)
    served = InferenceMiddleware(app, captured.telemetry, ServerSettings(provider=dialect))
    async with InProcessTransport(served, delay=delay) as transport:
        report = await drive(arrivals, client(transport))
        assert transport.errors == []
    errors = [each.error for each in report.sent]
    return Run(_joined(app, captured), errors, app)


def _joined(app: ServingApp, captured: CapturedTelemetry) -> list[Seen]:
    sides: dict[tuple[str, str], Mapping[str, Any]] = {}
    for span in captured.spans:
        attributes = span.attributes or {}
        if semconv.SIDE in attributes and span.context is not None:
            key = f"{span.context.trace_id:032x}", str(attributes[semconv.SIDE])
            sides[key] = attributes
    found = []
    for each in app.truths:
        trace = each.trace_id or ""
        client, server = (sides.get((trace, side), {}) for side in ("client", "server"))
        found.append(Seen(each, client, server))
    return found
