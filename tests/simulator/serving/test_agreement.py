"""What telemetry says agrees with what really happened, on both sides, for every dialect.

Two hundred requests of mixed lengths, half of them streams, on an engine whose KV cache is too
small for them, over a network with 20 ms each way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.servers.routes import route_of
from otel_llm.simulator.serving import ServingTruth
from otel_llm.simulator.workload import Lengths, RequestClass, Workload
from otel_llm.timeline import Phase
from tests.simulator.serving import harness
from tests.simulator.serving.harness import Run

REQUESTS = 200
DELAY_S = 0.02
TOLERANCE_US = 1_000
CLASSES = (
    RequestClass("chat", Lengths(80, 0.6, 1_000), Lengths(14, 0.6, 60), 3, 0.6),
    RequestClass("long", Lengths(1_500, 0.4, 4_000), Lengths(20, 0.4, 60), 0.7, 0.5),
    RequestClass(
        "rag", Lengths(100, 0.5, 500), Lengths(16, 0.5, 60), 1, 0.5, prefix_tokens=256, prefixes=4
    ),
)
Phases = dict[str, float]
WAYS: dict[str, tuple[str, harness.Client, dict[str, Any]]] = {
    "vllm": ("vllm", harness.openai_client, {}),
    "vllm with metrics": ("vllm", harness.openai_client, {"per_request_metrics": True}),
    "tgi": ("tgi", harness.tgi_client, {}),
    "tgi chat": ("tgi", harness.openai_client, {}),
    "ollama": ("ollama", harness.ollama_client, {}),
    "ollama openai": ("ollama", harness.openai_client, {}),
}
"""Each dialect by its own routes and by those of OpenAI: server, client, options of the server."""
ROUTES = {"tgi": "/generate", "ollama": "/api/chat"}
"""Routes that the middleware may not know."""
KNOWN = [
    pytest.param(
        way,
        marks=pytest.mark.xfail(
            way in ROUTES and route_of("POST", ROUTES[way]) is None,
            reason="the middleware does not know the route",
            strict=True,
        ),
    )
    for way in WAYS
]


def the_load(way: str, *, stops: float = 0.0) -> Run:
    """The whole load, by one way. Computed once."""
    return _the_load(way, stops)


@functools.cache
def _the_load(way: str, stops: float) -> Run:
    dialect, client, options = WAYS[way]
    arrivals = Workload(20.0, classes=CLASSES).arrivals(3, REQUESTS)
    return harness.run(
        dialect,
        client,
        arrivals,
        delay=lambda _bytes, _way: DELAY_S,
        serving={"stop_share": stops},
        engine=harness.engine_config(num_blocks=400),
        **options,
    )


def server_phases(truth: ServingTruth) -> Phases:
    """The phases of a request on its server, microseconds, as the truth has them."""
    queued, scheduled, first, last = (truth.mark(name) or 0 for name in MARKS)
    ended, delivered = truth.finished_ns or 0, truth.first_delivered_ns or 0
    begun = min(delivered, last) if truth.streaming else first
    instants = {
        "preprocess": queued - truth.received_ns,
        "load": truth.load_ns,
        "queue": scheduled - queued - truth.load_ns,
        "prefill": first - scheduled,
        "first_token": begun - first,
        "decode": last - begun,
        "delivery": ended - last,
    }
    return {name: ns / 1000 for name, ns in instants.items()}


MARKS = ("queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns")


def client_phases(way: str, truth: ServingTruth) -> Phases:
    """The phases that a client can know, each as DESIGN defines it for this side.

    Where the engine has told, they are the engine's own. Else a stream has its way to the first
    token, with the network in both directions, and what comes after it until the last text: that a
    model which stopped by itself made one token more, without text, only an engine can tell.
    """
    engine = server_phases(truth)
    whole_decode = engine["first_token"] + engine["decode"]
    told = {"vllm with metrics": ("queue", "prefill"), "ollama": ("load", "queue", "prefill")}
    if way in told:
        return {name: engine[name] for name in told[way]} | {"decode": whole_decode}
    if truth.streaming:
        waited = sum(engine[name] for name in ("preprocess", "load", "queue", "prefill"))
        unseen = textless_us(way, truth)
        return {
            "first_token": waited + 2e6 * DELAY_S,
            "decode": whole_decode - unseen,
            "delivery": engine["delivery"] + unseen,
        }
    if way.startswith("tgi"):
        return {name: engine[name] for name in ("preprocess", "queue")}
    return {}


def textless_us(way: str, truth: ServingTruth) -> float:
    """How long the token of the end took, where a stream shows none; microseconds."""
    (engine,) = truth.engine
    if way == "tgi" or engine.finish_reason != "stop":
        return 0.0
    return (engine.output_ns[-1][0] - engine.output_ns[-2][0]) / 1000


def written(attributes: Mapping[str, Any]) -> Phases:
    """The phases on a span."""
    found = {each.value: attributes.get(semconv.phase_us(each)) for each in Phase}
    return {name: us for name, us in found.items() if us is not None}


def differences(expected: Phases, found: Phases) -> Iterator[tuple[str, float, float]]:
    """Phases that are not the same; one that is not there is of no length."""
    for name in {*expected, *found}:
        pair = expected.get(name, 0.0), found.get(name, 0.0)
        if abs(pair[0] - pair[1]) > TOLERANCE_US:
            yield name, *pair


@pytest.mark.parametrize("way", WAYS)
def test_the_load_is_mixed(way: str) -> None:
    """All end well, there are streams and others, and some were pushed out of the batch."""
    run = the_load(way)
    assert run.errors == [None] * REQUESTS
    assert len(run.seen) == REQUESTS
    streams = sum(seen.truth.streaming for seen in run.seen)
    assert 60 < streams < 140
    assert any(truth.preemptions for seen in run.seen for truth in seen.truth.engine)
    assert {"ok"} == {seen.truth.outcome for seen in run.seen}


@pytest.mark.parametrize("way", KNOWN)
@pytest.mark.parametrize("stops", [0.0, 0.5])
def test_the_server_tells_the_truth(way: str, stops: float) -> None:
    """Every phase of every request within a millisecond, and no other phase."""
    for seen in the_load(way, stops=stops).seen:
        assert list(differences(server_phases(seen.truth), written(seen.server))) == []
        assert seen.truth.outcome == seen.server[semconv.OUTCOME]


@pytest.mark.parametrize("way", WAYS)
def test_the_client_tells_the_truth(way: str) -> None:
    """Every phase of every request within a millisecond, as far as it can be known there."""
    for seen in the_load(way).seen:
        assert list(differences(client_phases(way, seen.truth), written(seen.client))) == []
        assert seen.truth.outcome == seen.client[semconv.OUTCOME]


@pytest.mark.parametrize("way", WAYS)
def test_the_client_tells_the_truth_of_models_that_stop(way: str) -> None:
    """The token of the end has no text in most dialects; an engine that tells counts it."""
    for seen in the_load(way, stops=0.5).seen:
        assert list(differences(client_phases(way, seen.truth), written(seen.client))) == []


@pytest.mark.parametrize("way", KNOWN)
def test_both_sides_agree(way: str) -> None:
    """The client's request is the server's and two ways through the network; usage is the same."""
    counts = (semconv.OUTPUT_TOKENS, semconv.INPUT_TOKENS)
    for seen in the_load(way).seen:
        network_us = seen.client[semconv.E2E_US] - seen.server[semconv.E2E_US]
        assert abs(network_us - 2e6 * DELAY_S) <= TOLERANCE_US
        for name in counts:
            assert seen.server[name] == seen.client.get(name, seen.server[name])


@pytest.mark.parametrize("way", KNOWN)
def test_the_server_tells_what_the_engine_counted(way: str) -> None:
    """Tokens, cached ones, preemptions and how long they took."""
    for seen in the_load(way).seen:
        (truth,) = seen.truth.engine
        told = seen.server
        assert truth.output_tokens == told[semconv.OUTPUT_TOKENS]
        assert truth.cached_tokens == told[semconv.CACHE_READ_TOKENS]
        assert len(truth.preemptions) == told[semconv.PREEMPTIONS]
        away_us = sum(until - since for since, until in truth.preemptions) / 1000
        parts = ("prefill.preempted_us", "decode.preempted_us")
        assert abs(away_us - sum(told.get(semconv.part(name), 0) for name in parts)) < 10


def test_the_same_seed_is_the_same_run() -> None:
    """Two runs have the same truth to the nanosecond; only trace ids differ."""
    first = unnamed(the_load("tgi"))
    _the_load.cache_clear()
    assert first == unnamed(the_load("tgi"))


def unnamed(run: Run) -> list[ServingTruth]:
    """The truth without the ids of traces."""
    return [replace(seen.truth, trace_id=None, parent_id=None) for seen in run.seen]
