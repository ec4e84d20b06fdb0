"""A `Setup` in virtual time: instrumented clients, a network, a server, and their truths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2
import huggingface_hub
from opentelemetry.sdk.trace import ReadableSpan

import otel_llm
from otel_llm import config
from otel_llm.clients import engines
from otel_llm.servers.asgi import InferenceMiddleware, ServerSettings
from otel_llm.simulator import virtual
from otel_llm.simulator.engine import Engine
from otel_llm.simulator.faults import Setup
from otel_llm.simulator.load import (
    Client,
    Reading,
    Sent,
    drive,
    huggingface_client,
    ollama_client,
    openai_client,
)
from otel_llm.simulator.misbehaviour import Failed
from otel_llm.simulator.network import NetworkPolicy
from otel_llm.simulator.serving import DIALECTS, ServingConfig, ServingTruth
from otel_llm.simulator.transport import InProcessTransport
from otel_llm.simulator.workload import Arrival, Lengths, RequestClass, Workload
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.simulator.serving.harness import MODEL, URL, engine_config

CLASSES = (
    RequestClass("chat", Lengths(60, 0.5), Lengths(24, 0.5, 80), 4, 0.8),
    RequestClass("summarise", Lengths(700, 0.3), Lengths(20, 0.4, 60), 1, 0.5),
    RequestClass("agent", Lengths(80, 0.4), Lengths(16, 0.4, 40), 2, 0.8, prefix_tokens=640),
)


def setup(requests: int = 60, rate_per_s: float = 4.0) -> Setup:
    """A small engine under a load that it carries well."""
    workload = Workload(rate_per_s, CLASSES, MODEL, longest=6_000)
    return Setup(engine_config(), workload, requests)


@dataclass
class Played:
    """A run that is over. `index_of` says which arrival a trace belongs to."""

    sent: list[Sent]
    readings: dict[int, Reading]
    truths: list[ServingTruth]
    failed: list[Failed]
    spans: list[ReadableSpan]
    index_of: dict[str, int]
    started_s: float
    """When the run began, on the loop's clock."""
    attempts_s: dict[int, list[float]]
    """When each attempt of an arrival was sent, on the loop's clock."""

    def truth_of(self, index: int) -> ServingTruth | None:
        """Of the last attempt of an arrival that came to the server."""
        found = [each for each in self.truths if self.index_of.get(each.trace_id or "") == index]
        return found[-1] if found else None

    def failures_of(self, index: int) -> list[str]:
        """How the attempts of an arrival were made to fail."""
        traces = ((each, (each.traceparent or "--").split("-")[1]) for each in self.failed)
        return [each.kind for each, trace in traces if self.index_of.get(trace) == index]


SENDING: ContextVar[int] = ContextVar("sending")
"""The index of the arrival whose request is being sent."""


class Noting:
    """A network that notes when it was given each attempt of each arrival."""

    def __init__(self, policy: NetworkPolicy, now_s: Callable[[], float]) -> None:
        self._policy = policy
        self._now_s = now_s
        self.attempts_s: dict[int, list[float]] = {}

    def connection(self) -> NetworkPolicy:
        """For one attempt."""
        self.attempts_s.setdefault(SENDING.get(), []).append(self._now_s())
        return self._policy.connection()

    def __call__(self, nbytes: int, way: str) -> float:
        return self._policy(nbytes, way)


def play(given: Setup, dialect: str = "vllm") -> Played:
    """Play it to its end."""
    random.seed(given.seed)  # client libraries draw their pauses between retries from it
    return virtual.run(_play(given, dialect))


async def _play(given: Setup, dialect: str) -> Played:
    loop = asyncio.get_running_loop()
    clock = virtual.VirtualClock(loop)
    captured = captured_telemetry(clock=clock)
    engines.forget()
    otel_llm.instrument(engines=["openai", "ollama", "huggingface"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    start_s = loop.time()

    def now_s() -> float:
        return loop.time() - start_s

    conditions = given.conditions(clock.monotonic_ns())
    engine = Engine(given.engine, seed=given.seed, conditions=conditions)
    app = DIALECTS[dialect](engine, ServingConfig(model=MODEL), clock=clock)
    inner = given.server.wrap(app, now_s, given.seed)
    served = InferenceMiddleware(inner, captured.telemetry, ServerSettings(provider=dialect))
    policy = Noting(NetworkPolicy(given.network, now_s, given.seed), loop.time)
    index_of: dict[str, int] = {}
    library = "httpx" if dialect == "ollama" else "httpx2"
    async with InProcessTransport(served, delay=policy, library=library) as transport:
        with _client(dialect, transport, given) as client:
            arrivals = given.workload.arrivals(given.seed, given.requests)
            async with client:
                report = await drive(arrivals, _traced(client, captured, index_of), limit_s=3600)
        await asyncio.sleep(30)  # what nobody reads any more runs out
        await app.aclose()
    return Played(
        report.sent,
        client.readings,
        list(app.truths),
        inner.failed,
        captured.spans,
        index_of,
        start_s,
        policy.attempts_s,
    )


def _traced(
    client: Client, captured: CapturedTelemetry, index_of: dict[str, int]
) -> Callable[[Arrival], Awaitable[None]]:
    """Each arrival in a trace of its own, so that all that belongs to it can be found."""
    tracer = captured.tracer_provider.get_tracer("arrivals")

    async def send(arrival: Arrival) -> None:
        with tracer.start_as_current_span("arrival", record_exception=False) as span:
            index_of[f"{span.get_span_context().trace_id:032x}"] = arrival.index
            SENDING.set(arrival.index)
            await client(arrival)

    return send


@contextmanager
def _client(dialect: str, transport: Any, given: Setup) -> Iterator[Client]:
    """The library that people use with that server."""
    if dialect == "ollama":
        yield ollama_client(URL, given.client, transport=transport, timeout=None)
    elif dialect == "tgi":
        huggingface_hub.set_async_client_factory(
            lambda: httpx2.AsyncClient(transport=transport, timeout=None)
        )
        try:
            yield huggingface_client(URL, given.client)
        finally:
            huggingface_hub.set_async_client_factory(
                huggingface_hub.utils._http.default_async_client_factory
            )
    else:
        http = httpx2.AsyncClient(transport=transport, timeout=None)
        yield openai_client(f"{URL}/v1", given.client, http_client=http)
