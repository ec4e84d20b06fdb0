"""Under every fault, what telemetry says agrees with what really happened, on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.servers.routes import route_of
from otel_llm.simulator.faults import FAULTS
from otel_llm.simulator.serving import DIALECTS, ServingTruth
from otel_llm.timeline import Phase
from tests.simulator.faulty import Played, play, setup
from tests.simulator.serving.test_agreement import (
    ROUTES,
    TOLERANCE_US,
    Phases,
    differences,
    server_phases,
    written,
)

NEEDS = {
    "preprocess": ("queued_ns",),
    "load": ("scheduled_ns",),
    "queue": ("scheduled_ns",),
    "prefill": ("scheduled_ns", "first_token_ns"),
    "first_token": ("first_token_ns",),
    "decode": ("first_token_ns",),
    "delivery": ("last_token_ns",),
}
"""Marks that a phase needs, beside those of the phases before it."""
FAILS = {"500": "error", "503": "rejected", "429": "rejected", "cut": "error"}
FAILS["error_event"] = "error"
"""What a request becomes that was made to fail so."""
EVERY_FAULT = ["", *FAULTS]
CLIENTS = [(dialect, name) for dialect in DIALECTS for name in EVERY_FAULT]
SERVERS = [
    pytest.param(
        dialect,
        name,
        marks=pytest.mark.xfail(
            dialect == "ollama" and route_of("POST", ROUTES[dialect]) is None,
            reason="the middleware does not know the route",
            strict=True,
        ),
    )
    for dialect, name in CLIENTS
]


@cache
def played(dialect: str, name: str) -> Played:
    """Sixty requests under that fault at full strength, or under none."""
    given = setup()
    return play(FAULTS[name].apply(given) if name else given, dialect)


def on_server(run: Played) -> Iterator[tuple[ServingTruth, Mapping[str, Any]]]:
    """Every request that came to the server, and what its request span says."""
    spans: dict[str, Mapping[str, Any]] = {
        f"{each.context.span_id:016x}": each.attributes or {} for each in run.spans if each.context
    }
    for truth in run.truths:
        span = spans.get(truth.parent_id or "", {})
        yield truth, span if span.get(semconv.SIDE) == "server" else {}


def on_client(run: Played) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Every arrival, and what its client's request span says."""
    for span in run.spans:
        attributes = span.attributes or {}
        if attributes.get(semconv.SIDE) == "client" and span.context:
            yield run.index_of[f"{span.context.trace_id:032x}"], attributes


def failure_of(run: Played, truth: ServingTruth) -> str | None:
    """How a request that came to the application was made to fail, if it was."""
    here = [each.kind for each in run.failed if (truth.parent_id or "-") in str(each.traceparent)]
    return here[-1] if here else None


def true_server_phases(truth: ServingTruth, outcome: str | None) -> Phases:
    """Those phases of a request on its server that it came to; only a whole one is delivered."""
    phases = server_phases(truth)
    for name, marks in NEEDS.items():
        if any(truth.mark(mark) is None for mark in marks):
            phases.pop(name)
    if outcome != "ok":
        phases.pop("delivery", None)
    if truth.streaming and truth.first_delivered_ns is None:
        phases.pop("first_token", None)
    return phases


def true_client_phases(run: Played, index: int, dialect: str, found: Phases) -> Phases:
    """The phases of a request as its client can know them: what it saw, and what it was told."""
    sent, reading, truth = run.sent[index], run.readings[index], run.truth_of(index)
    attempts, phases = run.attempts_s[index], {}
    if len(attempts) > 1:
        phases["retry"] = attempts[-1] - attempts[0]
    if reading.first_s is not None and reading.last_s is not None:
        phases["first_token"] = reading.first_s - attempts[-1]
        phases["decode"] = reading.last_s - reading.first_s
        if reading.complete:
            phases["delivery"] = run.started_s + (sent.ended_s or 0.0) - reading.last_s
    phases = {name: seconds * 1e6 for name, seconds in phases.items()}
    whole = sent.error is None and (reading.complete or not sent.arrival.stream)
    if not whole or truth is None:
        return phases
    return phases | _told(dialect, server_phases(truth), sent.arrival.stream, found)


def _told(dialect: str, engine: Phases, stream: bool, found: Phases) -> Phases:
    """What the engine told with its last word: it stands for what a client cannot see.

    Ollama's queue is a bound: all that is not work, of which the rest may be before or after it.
    """
    if dialect == "ollama":
        decode = engine["decode"] + engine["first_token"]
        most = engine["preprocess"] + engine["queue"] + engine["delivery"]
        queue = min(max(engine["queue"], found.get("queue", 0.0)), most)
        told = {"load": engine["load"], "queue": queue, "prefill": engine["prefill"]}
        return told | {"decode": decode, "first_token": 0.0}
    if dialect == "tgi" and not stream:
        return {"preprocess": engine["preprocess"], "queue": engine["queue"] + engine["load"]}
    return {}


def said(attributes: Mapping[str, Any]) -> Phases:
    """The phases on a span; of one that was cut to fit, what the engine had said of it."""
    raw = {each.value: attributes.get(semconv.reported_us(each)) for each in Phase}
    return written(attributes) | {name: us for name, us in raw.items() if us is not None}


def true_outcome(run: Played, index: int) -> str:
    """How a request ended for its client."""
    reading, failures = run.readings[index], run.failures_of(index)
    if reading.complete:
        return "ok"
    if reading.left:
        return "abandoned" if run.sent[index].arrival.stream else "cancelled"
    return FAILS[failures[-1]] if run.sent[index].error else "ok"


@pytest.mark.parametrize(("dialect", "name"), SERVERS)
def test_the_server_tells_the_truth(dialect: str, name: str) -> None:
    """Every phase of every request within a millisecond and no other, and its outcome."""
    run = played(dialect, name)
    for truth, span in on_server(run):
        failed = failure_of(run, truth)
        outcome = FAILS[failed] if failed else truth.outcome
        assert outcome == span[semconv.OUTCOME]
        expected = true_server_phases(truth, outcome)
        assert list(differences(expected, written(span))) == [], truth


@pytest.mark.parametrize(("dialect", "name"), CLIENTS)
def test_the_client_tells_the_truth(dialect: str, name: str) -> None:
    """Every phase that it can know within a millisecond and no other, and its outcome."""
    run = played(dialect, name)
    seen = dict(on_client(run))
    assert set(seen) == set(range(len(run.sent)))
    for index, span in seen.items():
        assert true_outcome(run, index) == span[semconv.OUTCOME]
        found = said(span)
        expected = true_client_phases(run, index, dialect, found)
        assert list(differences(expected, found)) == [], index


@pytest.mark.parametrize(("dialect", "name"), CLIENTS)
def test_the_client_tells_how_long_it_took_and_who_was_slow(dialect: str, name: str) -> None:
    """The whole, and the reader's own part of it, within a millisecond."""
    run = played(dialect, name)
    for index, span in on_client(run):
        sent, reading = run.sent[index], run.readings[index]
        whole_us = ((sent.ended_s or 0.0) - (sent.sent_s or 0.0)) * 1e6
        stall_us = span.get(semconv.CONSUMER_STALL_US, 0)
        assert abs(whole_us - span[semconv.E2E_US]) <= TOLERANCE_US
        assert abs(reading.paused_s * 1e6 - stall_us) <= TOLERANCE_US


@pytest.mark.parametrize(("dialect", "name"), SERVERS)
def test_both_sides_agree(dialect: str, name: str) -> None:
    """The client waits for the way to the server, for the server, and for the way back."""
    run = played(dialect, name)
    clients = dict(on_client(run))
    for truth, span in on_server(run):
        index = run.index_of[truth.trace_id or ""]
        if run.readings[index].left or truth is not run.truth_of(index):
            continue
        assert truth.finished_ns is not None
        way_there_us = truth.received_ns / 1e3 - run.attempts_s[index][0] * 1e6
        ended_us = (run.started_s + (run.sent[index].ended_s or 0.0)) * 1e6
        way_back_us = ended_us - truth.finished_ns / 1e3
        around_us = clients[index][semconv.E2E_US] - span[semconv.E2E_US]
        assert abs(way_there_us + way_back_us - around_us) <= TOLERANCE_US
