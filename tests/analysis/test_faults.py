"""What is left out, and broken trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.analysis import SpanRecord, requests_of
from tests.analysis.builders import CLIENT, SERVER, START_NS, ledger, only, pair, plain, side


def counted(*spans: SpanRecord) -> tuple[int, int, int]:
    """How many requests are sound, invalid and incomplete."""
    found = requests_of(spans)
    return len(found.requests), found.invalid, found.incomplete


@pytest.mark.parametrize(
    "wrong",
    [
        {semconv.E2E_US: -1},
        {semconv.E2E_US: 1000.0},
        {semconv.E2E_US: "1000000"},
        {semconv.E2E_US: True},
        {semconv.E2E_US: 2**70},
        {semconv.E2E_US: 999_999},
        {semconv.phase_us("decode"): -1},
        {semconv.phase_us("queue"): 1},
        {semconv.phase_us("decode"): float("nan")},
        {semconv.UNACCOUNTED_US: 1},
        {semconv.TTFT_US: 1_000_001},
        {semconv.TPOT_US: 1_000_001},
        {semconv.ITL_P50_US: -5},
        {semconv.OUTCOME: "fine"},
        {semconv.OUTCOME: ["ok"]},
    ],
    ids=str,
)
def test_a_summary_that_contradicts_itself_is_invalid(wrong: dict[str, Any]) -> None:
    """Negative, no integer, more than E2E, or not adding up: counted, and not used."""
    assert counted(side("client", 1000, attributes=wrong, **CLIENT)) == (0, 1, 0)


@pytest.mark.parametrize("missing", [semconv.E2E_US, semconv.OUTCOME])
def test_a_request_without_its_summary_is_incomplete(missing: str) -> None:
    """A span that was not ended by the library tells no time."""
    assert counted(side("client", 1000, attributes={missing: None}, **CLIENT)) == (0, 0, 1)


def test_one_contradictory_side_spoils_the_request() -> None:
    """A ledger is only as good as every side in it."""
    client, between, _ = pair()
    server = side("server", 940, span="b2", parent="b1", attributes={semconv.E2E_US: 5}, **SERVER)
    assert counted(client, between, server) == (0, 1, 0)


@pytest.mark.parametrize(
    ("start_ns", "end_ns"),
    [(43_200 * 10**9, START_NS), (START_NS, START_NS - 250_000), (0, 0)],
    ids=["1970", "end before start", "nothing"],
)
def test_a_span_with_impossible_times_is_invalid(start_ns: int, end_ns: int) -> None:
    """From 1970, or ended before it began: one is listed, and the good ones stand."""
    wrong = replace(side("client", 5, trace="t9"), start_ns=start_ns, end_ns=end_ns)
    assert counted(*pair(), wrong) == (1, 1, 0)


def test_a_missing_sum_is_computed() -> None:
    """Without `unaccounted` it is what the phases leave."""
    facts = {semconv.UNACCOUNTED_US: None}
    assert ledger(only(side("server", 100, queue=50, attributes=facts)))["unaccounted"] == 50


def test_an_absent_caller_elsewhere_is_no_fault() -> None:
    """At the edge the parent span belongs to somebody else."""
    assert counted(side("server", 940, parent="elsewhere", **SERVER)) == (1, 0, 0)


def test_a_trace_that_lost_the_span_between_is_incomplete() -> None:
    """The server's HTTP span is gone: client and server can neither be joined nor counted twice."""
    client, _, server = pair()
    assert counted(client, server) == (0, 0, 2)


def test_many_edges_in_one_trace_stay() -> None:
    """A caller that exports elsewhere made three requests; none of them is torn."""
    spans = [side("server", 940, span=f"s{n}", parent=f"x{n}", **SERVER) for n in range(3)]
    assert counted(*spans) == (3, 0, 0)


def test_a_span_delivered_twice_counts_once() -> None:
    """The same again is the same; another of its id is another."""
    client = side("client", 1000, **CLIENT)
    assert counted(client, client) == (1, 0, 0)
    assert counted(client, replace(client, end_ns=client.end_ns + 1000)) == (2, 0, 0)


def test_a_span_that_is_its_own_parent_is_a_root() -> None:
    """The tie is cut."""
    assert counted(side("server", 940, parent="a1", **SERVER)) == (1, 0, 0)


def test_a_loop_is_cut_at_its_earliest_span() -> None:
    """Two sides that are each other's parent are one request."""
    found = requests_of(
        [
            side("server", 900, span="s2", parent="a1", at=10, queue=900),
            side("client", 1000, span="a1", parent="s2"),
        ]
    )
    assert [each.outermost.side for each in found.requests] == ["client"]
    assert ledger(found.requests[0])["network"] == 100


def test_a_loop_of_other_spans_ends() -> None:
    """The walk to the nearest request above does not go round."""
    spans = [plain("x", "y"), plain("y", "x"), side("server", 940, parent="x", **SERVER)]
    assert counted(*spans) == (1, 0, 0)


def test_a_very_deep_trace_is_read() -> None:
    """Ten thousand sides below each other are neither slow nor too deep."""
    spans = [side("server", 10, span=f"s{n}", parent=f"s{n - 1}") for n in range(10_000)]
    assert counted(*spans) == (1, 0, 0)


def test_phases_longer_than_the_request_are_invalid() -> None:
    """Also where nobody wrote down what they leave."""
    facts = {semconv.UNACCOUNTED_US: None, semconv.phase_us("queue"): 101_000}
    assert counted(side("server", 100, attributes=facts)) == (0, 1, 0)
