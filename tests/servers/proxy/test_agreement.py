"""The proxy's phases beside what really happened in a simulated engine, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.servers.proxy.settings import ProxyEngine
from otel_llm.testing import CapturedTelemetry
from tests.servers.proxy.builders import CHAT, ask, engine_of, proxied, request
from tests.simulator.serving.harness import app_of, engine_config

PROMPT = "why is the sky blue"
TOKENS = 12
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": (
        CHAT,
        {
            "model": "tiny",
            "stream": True,
            "max_tokens": TOKENS,
            "messages": [{"role": "user", "content": PROMPT}],
        },
    ),
    "tgi": (
        "/generate_stream",
        {"inputs": PROMPT, "parameters": {"max_new_tokens": TOKENS, "details": True}},
    ),
    "ollama": (
        "/api/chat",
        {
            "model": "tiny",
            "options": {"num_predict": TOKENS},
            "messages": [{"role": "user", "content": PROMPT}],
        },
    ),
}
WAVE = 4


async def asked(dialect: str, captured: CapturedTelemetry) -> list[tuple[Any, Mapping[str, Any]]]:
    """Truth and span of a lone request, and then of several at once that must take turns."""
    app = app_of(dialect, SYSTEM_CLOCK, engine_config(max_num_seqs=2), serving={"stop_share": 0.0})
    path, body = BODIES[dialect]
    engine = ProxyEngine(dialect)
    async with engine_of(app) as address, proxied(address, captured, engine=engine) as proxy:
        for count in (1, 1, WAVE):
            sent = [ask(proxy.address, request(body, path)) for _ in range(count)]
            answers = await asyncio.gather(*sent)
            assert {(each.status, each.whole) for each in answers} == {(200, True)}
    spans = {
        f"{each.context.trace_id:032x}": each.attributes
        for each in captured.spans
        if semconv.SIDE in each.attributes
    }
    return [(truth, spans[truth.trace_id]) for truth in app.truths]


def lasted(truth: Any, start: str, end: str) -> float:
    """Seconds between two instants of the engine."""
    (each,) = truth.engine
    return (getattr(each, end) - getattr(each, start)) / 1e9


def shown(found: Mapping[str, Any], *phases: str) -> float:
    """Seconds of phases on a span."""
    return sum(found.get(semconv.phase_us(each), 0) for each in phases) / 1e6


@pytest.mark.parametrize("dialect", ["vllm", "tgi"])
async def test_engines_that_tell_nothing_of_a_stream(
    captured: CapturedTelemetry, dialect: str
) -> None:
    """Queue and prefill are estimates: together as observed, apart within some steps' time."""
    seen = await asked(dialect, captured)
    assert len(seen) == 2 + WAVE
    for truth, found in seen:
        sources = dict(each.split("=") for each in found[semconv.SOURCES].split(";"))
        assert (sources["queue"], sources["prefill"]) == ("estimated", "estimated")
        waited = lasted(truth, "queued_ns", "first_token_ns")
        assert shown(found, "queue", "prefill") == pytest.approx(waited, abs=0.03)
        queued = lasted(truth, "queued_ns", "scheduled_ns")
        assert shown(found, "queue") == pytest.approx(queued, abs=0.06)
    assert max(lasted(truth, "queued_ns", "scheduled_ns") for truth, _ in seen) > 0.1


async def test_an_engine_that_tells_durations(captured: CapturedTelemetry) -> None:
    """Ollama's load, prefill and decode are its own; what is left of its total is the queue."""
    seen = await asked("ollama", captured)
    for truth, found in seen:
        sources = dict(each.split("=") for each in found[semconv.SOURCES].split(";"))
        assert (sources["prefill"], sources["queue"]) == ("reported", "estimated")
        prefill = lasted(truth, "scheduled_ns", "first_token_ns")
        assert shown(found, "prefill") == pytest.approx(prefill, abs=0.005)
    loaded = [shown(found, "load") for _, found in seen]
    assert loaded[0] > 1
    assert max(loaded[1:]) < 0.1
