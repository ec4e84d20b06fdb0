"""Calls of the OpenAI client beside another instrumentation; run in an environment that has it.

    python -m tests.conformance.beside_child PEER first|second

says whether the peer is switched on before ours or after. Prints one JSON object: for each call
the spans, the token metrics' growth, the `traceparent` of each request, and what was logged.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import otel_llm
from tests.benchmarks.clients.peers import ROWS, Peer, pipeline
from tests.conformance.beside_calls import Calls, LangChainCalls, LiteLLMCalls, MoreCalls
from tests.fakes.openai_server import Answer, failing, serving, stream, whole


def nothing(in_memory: bool) -> Peer:
    """No other instrumentation."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    return peer


def http(in_memory: bool) -> Peer:
    """OpenTelemetry's instrumentations of HTTP clients."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    from opentelemetry.instrumentation.httpx import (
        HTTPX2ClientInstrumentor,
        HTTPXClientInstrumentor,
    )
    from opentelemetry.instrumentation.requests import RequestsInstrumentor

    for each in (HTTPXClientInstrumentor, HTTPX2ClientInstrumentor, RequestsInstrumentor):
        each().instrument()
    return peer


def langchain(module: str, name: str) -> Callable[[bool], Peer]:
    """An instrumentation of LangChain."""

    def switch_on(in_memory: bool) -> Peer:
        peer = Peer()
        peer.pipeline = made = pipeline(in_memory)
        instrumentor: Any = getattr(importlib.import_module(module), name)
        instrumentor().instrument(tracer_provider=made.tracers, meter_provider=made.meters)
        return peer

    return switch_on


def litellm(in_memory: bool) -> Peer:
    """LiteLLM's own callback, which writes a span after the call."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    import litellm as library
    from litellm.integrations.opentelemetry import OpenTelemetry

    library.callbacks = [OpenTelemetry(tracer_provider=peer.pipeline.tracers)]
    return peer


PEERS: dict[str, Callable[[bool], Peer]] = {
    "nothing": nothing,
    "http": http,
    "openinference-langchain": langchain(
        "openinference.instrumentation.langchain", "LangChainInstrumentor"
    ),
    "openllmetry-langchain": langchain(
        "opentelemetry.instrumentation.langchain", "LangchainInstrumentor"
    ),
    "litellm": litellm,
    **{name: row.switch_on for name, row in ROWS.items()},
}


EMBEDDINGS = {
    "object": "list",
    "model": "tiny",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}
PACED = stream(5, first=0.02, gap=0.002)
BUSY = failing(503, headers={"retry-after-ms": "50"})
ANSWERS: dict[str, list[Answer]] = {
    "whole": [whole()],
    "streamed": [PACED],
    "left": [stream(50, gap=0.005)],
    "failed": [failing(500)],
    "async_whole": [whole()],
    "async_streamed": [PACED],
    "raw": [PACED],
    "streaming_bytes": [PACED],
    "never_read": [PACED],
    "retried": [BUSY, whole()],
    "embedded": [whole(EMBEDDINGS)],
}


def spans(peer: Peer) -> list[dict[str, Any]]:
    """What has ended, as plain values."""
    assert peer.pipeline is not None
    return [
        {
            "name": each.name,
            "scope": each.instrumentation_scope.name,
            "id": f"{each.context.span_id:016x}",
            "parent": f"{each.parent.span_id:016x}" if each.parent else None,
            "attributes": {name: str(value) for name, value in each.attributes.items()},
        }
        for each in peer.pipeline.spans.get_finished_spans()
    ]


def tokens(peer: Peer) -> float:
    """The sum of all that token metrics hold."""
    assert peer.pipeline is not None
    data = peer.pipeline.reader.get_metrics_data()
    return sum(
        point.sum
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.client.token.usage"
        for point in metric.data.data_points
    )


class _Keeping(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{record.name}: {record.getMessage()[:200]}")


def observed(peer: Peer, calls: Calls, name: str, logged: _Keeping) -> dict[str, Any]:
    """One call, and what came of it."""
    assert peer.pipeline is not None
    peer.pipeline.spans.clear()
    logged.records.clear()
    calls.server.asked.clear()
    calls.server.answers[:] = ANSWERS[name]
    before = tokens(peer)
    getattr(calls, name)()
    gc.collect()
    calls.wait()
    return {
        "spans": spans(peer),
        "tokens": tokens(peer) - before,
        "traceparent": [each.headers.get("traceparent", []) for each in calls.server.asked],
        "logged": list(logged.records),
    }


def main(name: str, order: str) -> None:
    """Switch both on, make the calls, and print what came of them."""
    logged = _Keeping()
    logging.getLogger().addHandler(logged)
    if order == "second":
        otel_llm.instrument(engines=["openai"])
    peer = PEERS[name](True)
    if order == "first":
        otel_llm.instrument(engines=["openai"])
    kinds = {"litellm": LiteLLMCalls, "nothing": MoreCalls}
    kind = LangChainCalls if "langchain" in name else kinds.get(name, Calls)
    with serving(whole()) as server:
        calls = kind(peer, server)
        names = [each for each in ANSWERS if getattr(calls, each, None)]
        print(json.dumps({each: observed(peer, calls, each, logged) for each in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
