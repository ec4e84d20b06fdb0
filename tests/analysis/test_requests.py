"""Spans to requests: which sides belong together and where the time went, by hand."""

from __future__ import annotations

import pytest

from otel_llm import semconv
from otel_llm.analysis import requests_of
from otel_llm.timeline import Part
from tests.analysis.builders import CLIENT, SERVER, ledger, only, pair, plain, side, us


def test_a_client_alone_has_what_it_saw() -> None:
    """Without a server below, the client's own phases are the request's, and no network."""
    request = only(side("client", 1000, **CLIENT))
    assert ledger(request) == {"first_token": 400, "decode": 590, "delivery": 10}
    assert "network" not in request.durations
    assert request.durations["unaccounted"].us == 0


def test_the_network_is_what_the_first_token_took_beyond_the_server() -> None:
    """The client had it after 400 ms, the server had handed it on after 350.

    Phases come from the server. Of the client's 60 ms more the other 10 are delivery.
    """
    request = only(*pair())
    server = {name: ms for name, ms in SERVER.items() if name != "ttft"}
    assert {**server, "network": 50, "delivery": 20} == ledger(request)
    assert us(1000) == request.e2e_us
    assert request.durations["network"].source == "derived"


def test_a_slow_reader_is_not_the_network() -> None:
    """It had its first token in time and the last one four seconds late."""
    request = only(side("client", 5000, **{**CLIENT, "decode": 4590}), *pair()[1:])
    assert ledger(request)["network"] == 50
    assert ledger(request)["delivery"] == 4020


def test_a_reply_in_one_piece_has_no_reader_in_it() -> None:
    """Without a first token of its own all that the client waited longer is the network's."""
    request = only(side("client", 1000), side("server", 940, span="b2", parent="a1", **SERVER))
    assert ledger(request)["network"] == 60
    assert request.durations["network"].source == "derived"


def test_the_clocks_of_two_hosts_are_never_subtracted() -> None:
    """A server whose clock is an hour off gives the same request."""
    client, between, server = pair()
    ahead = side("server", 940, span="b2", parent="b1", at=3_600_000, **SERVER)
    behind = side("server", 940, span="b2", parent="b1", at=-3_600_000, **SERVER)
    wanted = only(client, between, server)
    for other in (ahead, behind):
        found = only(client, between, other)
        assert wanted.segments == found.segments
        assert [each.start_us for each in wanted.lanes] == [each.start_us for each in found.lanes]


def test_setting_up_the_connection_comes_before_the_server() -> None:
    """Of 50 ms before the first token 30 ms were set-up; half of the rest is the way there."""
    setup = {semconv.NET_DNS_US: us(5), semconv.NET_CONNECT_US: us(10), semconv.NET_TLS_US: us(15)}
    assert [0, us(40)] == [each.start_us for each in only(*pair(**setup)).lanes]


def test_latencies_are_those_of_the_outermost_side() -> None:
    """TTFT and E2E are what the user had, not what the server thinks."""
    request = only(*pair())
    assert us(400) == request.outermost.ttft_us
    assert us(1000) == request.e2e_us


def test_a_proxy_between_belongs_to_the_request() -> None:
    """Client, proxy and server are one request; both hops are network."""
    request = only(
        side("client", 1000, **CLIENT),
        side("proxy", 970, span="p1", parent="a1", ttft=370, decode=590),
        side("server", 940, span="b2", parent="p1", **SERVER),
    )
    assert ledger(request)["network"] == 30 + 20
    assert ledger(request)["queue"] == 200
    assert [each.side.value for each in request.lanes] == ["client", "proxy", "server"]


def test_only_the_answered_attempt_counts() -> None:
    """Of two attempts the second answered; the first is in the client's retry."""
    request = only(
        side("client", 1500, ttft=400, retry=500, first_token=400, decode=590, delivery=10),
        side("server", 480, span="s1", parent="a1", outcome="error", queue=480),
        side("server", 940, span="s2", parent="a1", at=500, **SERVER),
    )
    assert ledger(request)["retry"] == 500
    assert ledger(request)["queue"] == 200
    assert ledger(request)["network"] == 50


def test_an_attempt_that_failed_explains_nothing() -> None:
    """When the answering server was not recorded, the client's own view stands."""
    request = only(
        side("client", 1500, ttft=400, retry=500, first_token=400, decode=590, delivery=10),
        side("server", 480, span="s1", parent="a1", outcome="rejected", queue=480),
    )
    assert ledger(request) == {"retry": 500, "first_token": 400, "decode": 590, "delivery": 10}


def test_a_nested_call_is_a_hop_and_not_counted_again() -> None:
    """An agent's tool calls a model: one request with one hop, and the agent's own phases."""
    request = only(
        *pair(),
        plain("tool", "b2"),
        side("client", 300, span="c1", parent="tool", ttft=100, first_token=100, decode=200),
        side("server", 280, span="c2", parent="c1", ttft=90, queue=50, prefill=40, decode=190),
    )
    assert request.hops == 1
    assert ledger(request)["queue"] == 200
    assert [each.side.value for each in request.sides] == ["client", "server"]


def test_two_calls_in_one_trace_are_two_requests() -> None:
    """Clients below a span that is no request are outermost, each for itself."""
    found = requests_of(
        [
            plain("root", None),
            side("client", 100, span="c1", parent="root", ttft=50, first_token=50, decode=50),
            side("client", 200, span="c2", parent="root", ttft=50, first_token=50, decode=150),
        ]
    )
    assert [us(100), us(200)] == sorted(each.e2e_us for each in found.requests)


def test_spans_of_any_order_and_trace_are_sorted_out() -> None:
    """Two traces, children first, interleaved."""
    first, second = pair("t1"), pair("t2", scale=2)
    mixed = [span for both in zip(first[::-1], second[::-1], strict=True) for span in both]
    assert {us(1000), us(2000)} == {each.e2e_us for each in requests_of(mixed).requests}


def test_several_choices_are_one_request() -> None:
    """With n=3 there is one span on each side, and its tokens are summed already."""
    choices = {semconv.CHOICE_COUNT: 3, semconv.OUTPUT_TOKENS: 90}
    request = only(*pair(**choices))
    assert request.inner(semconv.OUTPUT_TOKENS) == 90
    assert ledger(request)["queue"] == 200


def _prefilled_elsewhere(decode_e2e: float = 640) -> list:  # type: ignore[type-arg]
    """A proxy that has one engine prefill and another decode."""
    moved = semconv.part(Part.QUEUE_KV_TRANSFER_US.value)
    prefill = {semconv.ROLE: "prefill", moved: us(30)}
    decode = {semconv.ROLE: "decode", moved: us(25)}
    return [
        side("proxy", 1000, ttft=400, decode=560, delivery=5),
        side("server", 310, span="s1", parent="a1", ttft=300, queue=100, prefill=200, delivery=10,
             attributes=prefill),
        side("server", decode_e2e, span="s2", parent="a1", at=330, ttft=60, queue=50, prefill=10,
             decode=560, delivery=decode_e2e - 620, attributes=decode),
    ]  # fmt: skip


def test_engines_that_share_the_work_add_up() -> None:
    """Queue and prefill of both engines count; the first token took 30 ms more to the proxy."""
    found = ledger(only(*_prefilled_elsewhere()))
    assert found == {"queue": 150, "prefill": 210, "decode": 560, "delivery": 50, "network": 30}


def test_a_kv_transfer_counts_once() -> None:
    """Both engines measured the transfer; the one that waited for it counts."""
    assert us(25) == only(*_prefilled_elsewhere()).part(Part.QUEUE_KV_TRANSFER_US)


def test_engines_at_the_same_time_are_not_added() -> None:
    """When both together are longer than the request, the generating one tells its time."""
    found = ledger(only(*_prefilled_elsewhere(decode_e2e=900)))
    assert found["queue"] == 50
    assert sum(found.values()) == 1000


def test_a_prefill_below_its_decode_is_part_of_its_queue() -> None:
    """A generating engine that has another prefill for it keeps its own phases."""
    decode = {semconv.ROLE: "decode"}
    request = only(
        side("server", 800, ttft=300, queue=280, prefill=20, decode=500, attributes=decode),
        side("server", 250, span="s2", parent="a1", ttft=240, queue=40, prefill=200,
             attributes={semconv.ROLE: "prefill"}),
    )  # fmt: skip
    assert ledger(request) == {"queue": 280, "prefill": 20, "decode": 500}


def test_an_engine_in_the_server_leaves_no_network() -> None:
    """The server's own work is before, between and after what its engine did."""
    request = only(
        side("server", 1000, ttft=350, preprocess=40, first_token=30, decode=500, delivery=60),
        side(
            "engine",
            880,
            span="e1",
            parent="a1",
            ttft=300,
            queue=100,
            prefill=200,
            decode=560,
            delivery=20,
        ),
    )
    wanted = {
        "preprocess": 40, "queue": 100, "prefill": 200, "first_token": 30, "decode": 530,
        "delivery": 60, "unaccounted": 40,
    }  # fmt: skip
    assert wanted == ledger(request)


def test_a_client_tells_what_its_server_does_not() -> None:
    """The reply of an engine states its phases; the server in front saw only a request."""
    request = only(
        side("client", 1000, ttft=400, source="reported", load=100, queue=50, prefill=200,
             decode=590),
        side("server", 960, span="b2", parent="a1"),
    )  # fmt: skip
    wanted = {"load": 100, "queue": 50, "prefill": 200, "decode": 590, "unaccounted": 20}
    assert {**wanted, "network": 40} == ledger(request)
    assert request.durations["network"].source == "estimated"  # the reader's time may be in it


def test_a_clients_wait_is_no_phase_beside_the_servers() -> None:
    """What the server leaves unaccounted is not called waiting for the first token."""
    request = only(
        side("client", 1000, **CLIENT),
        side("server", 950, span="b2", parent="a1", ttft=340, prefill=40, decode=600),
    )
    assert ledger(request) == {"prefill": 40, "decode": 600, "unaccounted": 310, "network": 50}


def test_a_server_that_ends_after_its_client_is_cut() -> None:
    """The client had all it wanted; what the server did later is not part of the request."""
    request = only(
        side("client", 1000, **CLIENT),
        side("server", 1030, span="b2", parent="a1", ttft=390, queue=200, prefill=190, decode=590,
             delivery=50),
    )  # fmt: skip
    assert ledger(request) == {"queue": 200, "prefill": 190, "decode": 590, "delivery": 20}
    assert request.durations["network"].us == 0
    assert request.durations["delivery"].source == "estimated"


def test_a_first_token_that_the_network_held_back_does_not_stretch_it() -> None:
    """A lost segment delays the first token by more than the end: all of it lay before."""
    request = only(
        side("client", 1000, ttft=700, first_token=700, decode=290, delivery=10),
        side("server", 940, span="b2", parent="a1", **SERVER),
    )
    assert us(60) == request.durations["network"].us
    assert min(each.us for each in request.segments) >= 0


@pytest.mark.parametrize("value", ["20", True, 0.5, -3.0, float("nan"), float("inf"), 1e300, None])
def test_what_cannot_be_a_weight_is_none(value: object) -> None:
    """A weight is one over a probability; anything else counts the request once."""
    request = only(*pair(**{semconv.ADJUSTED_COUNT: value}))
    assert (request.weight, request.weighed) == (1.0, False)


def test_the_weight_of_any_side_is_the_requests() -> None:
    """All spans of a trace carry the same; the client's may lack it."""
    client, between, _ = pair()
    facts = {semconv.ADJUSTED_COUNT: 20.0}
    server = side("server", 940, span="b2", parent="b1", attributes=facts, **SERVER)
    request = only(client, between, server)
    assert (request.weight, request.weighed) == (20.0, True)


def test_the_engine_is_what_a_reply_has_shown_before_any_provider() -> None:
    """The client was told by the reply; the server's provider is the next best."""
    server = side("server", 100, attributes={semconv.PROVIDER: "vllm"})
    assert only(server).engine == "vllm"
    shown = {semconv.PROVIDER: "openai", semconv.ENGINE_NAME: "sglang"}
    assert only(side("client", 100, attributes=shown)).engine == "sglang"


@pytest.mark.parametrize(("which", "first"), [("client", "unaccounted"), ("server", "queue")])
def test_what_is_unaccounted_lies_on_the_way_to_an_engine(which: str, first: str) -> None:
    """An engine far away begins later than the request, one in the process does not."""
    request = only(side(which, 1000, queue=200, prefill=300, decode=400))
    assert first == next(each.name for each in request.segments if each.us)


def test_a_kv_transfer_that_only_its_sender_measured_is_not_told() -> None:
    """Who sends the cache does not wait for it."""
    sent = {semconv.ROLE: "prefill", semconv.part(Part.QUEUE_KV_TRANSFER_US.value): us(30)}
    assert only(side("server", 310, attributes=sent)).part(Part.QUEUE_KV_TRANSFER_US) is None


def test_of_two_attempts_at_once_the_one_that_ended_well_answered() -> None:
    """The later one was cancelled when the first had answered."""
    request = only(
        side("client", 1000, **CLIENT),
        side("server", 940, span="s1", parent="a1", **SERVER),
        side("server", 300, span="s2", parent="a1", at=500, outcome="cancelled", queue=300),
    )
    assert ledger(request)["queue"] == 200


def test_the_inner_side_knows_the_engine_and_the_outer_the_user() -> None:
    """Where both count, each is asked for what it is nearer to."""
    client, between, _ = pair(**{semconv.OUTPUT_TOKENS: 5, semconv.PROVIDER: "openai"})
    facts = {semconv.OUTPUT_TOKENS: 7, semconv.PROVIDER: "vllm"}
    request = only(client, between, side("server", 940, span="b2", parent="b1", attributes=facts))
    assert (request.outer(semconv.OUTPUT_TOKENS), request.inner(semconv.OUTPUT_TOKENS)) == (5, 7)
    assert request.engine == "vllm"
