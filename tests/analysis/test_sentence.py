"""What is said of the slowest request."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.analysis import SpanRecord, analyse, explain, requests_of, sentence
from otel_llm.timeline import Part
from tests.analysis.builders import CLIENT, only, pair, side, us

QUEUED = semconv.REPLICA_WHEN_QUEUED


def told(*spans: SpanRecord) -> str:
    """The sentence on some spans."""
    return sentence(analyse(requests_of(spans)))


def usual(count: int = 20) -> list[SpanRecord]:
    """Requests of a second on a server."""
    return [
        side("server", 1000, trace=f"u{n}", ttft=400, queue=200, prefill=200, decode=600)
        for n in range(count)
    ]


def slow(e2e: float = 9000, **facts: Any) -> str:
    """The sentence on one slow request among usual ones; *facts* are phases and attributes."""
    attributes = facts.pop("attributes", {})
    return told(*usual(), side("server", e2e, trace="slow", attributes=attributes, **facts))


def test_the_queue_is_told_with_what_was_going_on() -> None:
    """Length, share, the replica when queued, and the prefill after it."""
    facts = {
        QUEUED.running: 37, QUEUED.waiting: 4, QUEUED.kv_cache_percent: 98,
        semconv.INPUT_TOKENS: 30_112,
    }  # fmt: skip
    assert slow(queue=5100, prefill=3200, decode=700, attributes=facts) == (
        "The slowest request (9.0 s, 9.0 times the median) spent 5.1 s, 57 % of it, in the queue, "
        "while 37 requests ran, 4 waited and the KV cache was 98 % full; "
        "prefill of 30,112 tokens took 3.2 s."
    )


def test_what_is_usual_is_not_the_reason() -> None:
    """Decode takes longest, as it always does; the queue is what grew."""
    assert "spent 500 ms, 42 % of it, in the queue." in slow(
        e2e=1200, queue=500, prefill=100, decode=600
    )


def test_few_requests_have_no_usual() -> None:
    """Of two requests the longest phase is told, and no multiple of the median."""
    spans = [
        side("server", 5000, trace="t1", queue=1000, decode=4000),
        side("server", 900, trace="t2", queue=900),
    ]
    assert told(*spans) == (
        "The slowest request (5.0 s) spent 4.0 s, 80 % of it, decoding; the queue took 1.0 s."
    )


def test_preemption_is_told_inside_its_phase() -> None:
    """Time lost and how often, of the decode."""
    facts = {
        semconv.part(Part.DECODE_PREEMPTED_US.value): us(900), semconv.PREEMPTIONS: 2,
        semconv.OUTPUT_TOKENS: 512, semconv.REPLICA_WHEN_FINISHED.running: 40,
    }  # fmt: skip
    assert slow(queue=100, prefill=100, decode=8800, attributes=facts).endswith(
        "decoding 512 tokens, 900 ms of that preempted (2 preemptions), among 40 running requests."
    )


def test_stalls_are_told_with_the_decode() -> None:
    """Number and sum."""
    facts = {semconv.STALLS: 1, semconv.STALL_US: us(3000)}
    assert "decoding, with 1 stall of 3.0 s in all." in slow(decode=9000, attributes=facts)


def test_cached_tokens_are_told_with_the_prefill() -> None:
    """How much of the prompt needed no work."""
    facts = {semconv.INPUT_TOKENS: 2000, semconv.CACHE_READ_TOKENS: 1500}
    found = slow(prefill=8000, decode=1000, attributes=facts)
    assert "in prefill of 2,000 tokens, 1,500 of them cached" in found


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("load", "waiting for the model to load."),
        ("preprocess", "in preprocessing (template, tokens, hand-over)."),
        ("first_token", "getting the first token out of the server."),
        ("delivery", "delivering the rest after the last token."),
    ],
)
def test_every_phase_has_its_words(phase: str, words: str) -> None:
    """What happened, and not a name of ours."""
    assert slow(**{phase: 9000}).endswith(words)


def test_retries_are_counted() -> None:
    """Three attempts were two too many."""
    facts = {semconv.ATTEMPTS: 3}
    spans = side("client", 9000, ttft=400, retry=8000, first_token=400, attributes=facts)
    assert told(spans).endswith("spent 8.0 s, 89 % of it, on 2 earlier attempts.")


def network(e2e: float, ttft: float, **facts: int) -> str:
    """The sentence on one request whose server took 940 ms."""
    client = side("client", e2e, ttft=ttft, first_token=ttft, attributes=facts)
    return told(client, *pair()[1:])


def test_the_network_is_told_with_its_losses() -> None:
    """At that round trip, with these retransmits."""
    facts = {semconv.NET_RETRANSMITS: 2, semconv.NET_RTT_US: us(80)}
    assert network(5000, 4000, **facts) == (
        "The slowest request (5.0 s) spent 3.6 s, 73 % of it, on the network, "
        "with 2 retransmits, at a round trip of 80 ms; decoding took 580 ms."
    )


def test_a_slow_reader_is_not_called_a_slow_network() -> None:
    """Chunks lay unread while the server had long finished."""
    found = network(5000, 400, **{semconv.CONSUMER_STALL_US: us(3900)})
    assert "spent 4.0 s, 80 % of it, delivering the rest after the last token" in found
    assert "its reader left chunks unread for 3.9 s" in found
    assert "network" not in found


def test_a_slow_reader_is_told_where_it_is_not_the_main_thing() -> None:
    """What overlaps the phases is said beside them."""
    facts = {semconv.CONSUMER_STALL_US: us(2000)}
    client = {**CLIENT, "decode": 8590}
    found = told(side("client", 9000, attributes=facts, **client))
    assert found.endswith("; meanwhile its reader left chunks unread for 2.0 s.")


def test_a_client_alone_does_not_blame_the_server() -> None:
    """Nobody said what happened before the first token."""
    found = told(side("client", 5000, ttft=4800, first_token=4800, decode=200))
    assert found == (
        "The slowest request (5.0 s) spent 4.8 s, 96 % of it, waiting for the first token, "
        "of which no server told more."
    )


def test_what_is_unaccounted_is_not_explained() -> None:
    """When most is unknown the sentence says so."""
    assert slow(queue=200, prefill=200, decode=600) == (
        "The slowest request (9.0 s, 9.0 times the median) cannot be explained: "
        "of 8.0 s, 89 % of it, no side told anything."
    )


def test_a_bound_is_called_one() -> None:
    """An estimated queue is at most that long."""
    assert "spent at most 8.0 s, 89 % of it, in the queue" in slow(
        queue=8000, decode=1000, source="estimated"
    )


def test_the_transfer_of_a_cache_is_told_with_the_queue() -> None:
    """On a decoding engine it is what the queue waited for."""
    facts = {semconv.part(Part.QUEUE_KV_TRANSFER_US.value): us(3000), semconv.ROLE: "decode"}
    found = slow(queue=8000, decode=1000, attributes=facts)
    assert "in the queue, 3.0 s of that for the KV transfer" in found


def test_without_a_success_the_outcomes_are_told() -> None:
    """Nothing slow is made up."""
    failed = [side("server", 5, trace=f"t{n}", outcome="error") for n in range(2)]
    refused = side("server", 5, trace="t9", outcome="rejected")
    assert told(*failed, refused) == "None of the 3 requests ended well: 2 error and 1 rejected."
    assert told(refused) == "The one request did not end well: 1 rejected."


def test_without_a_request_that_is_said() -> None:
    """An empty input has its sentence."""
    assert told() == "No request was found."


def test_a_request_of_no_length_is_said_to_have_none() -> None:
    """Nothing is divided by zero."""
    assert (
        told(side("server", 0)) == "The slowest request (0) took no time that could be told apart."
    )


def test_any_request_can_be_explained() -> None:
    """Not only the slowest."""
    request = only(side("server", 100, queue=100))
    assert explain(request, []) == "The request (100 ms) spent 100 ms, 100 % of it, in the queue."
