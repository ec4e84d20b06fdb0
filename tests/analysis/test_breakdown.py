"""Figures and the report, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from otel_llm import semconv
from otel_llm.analysis import SpanRecord, analyse, as_json, as_object, requests_of
from otel_llm.analysis.breakdown import MOST_GROUPS
from otel_llm.analysis.report import schema
from tests.analysis.builders import CLIENT, pair, side


def report(*spans: SpanRecord, **options: Any) -> dict[str, Any]:
    """The report on some spans."""
    return as_object(analyse(requests_of(spans), **options))


def three() -> list[SpanRecord]:
    """Requests of 1, 2 and 4 s."""
    return [span for n, scale in enumerate((1, 2, 4)) for span in pair(f"t{n}", scale=scale)]


def test_latencies_are_seconds() -> None:
    """Median and mean of 1, 2 and 4 s, and of their first tokens."""
    latency = report(*three())["latency"]
    assert (
        latency["e2e"]["p50"],
        latency["e2e"]["p99"],
        latency["e2e"]["n_eff"],
    ) == (2.0, 4.0, 3.0)
    assert pytest.approx(7 / 3) == latency["e2e"]["mean"]
    assert latency["ttft"]["p50"] == 0.8


def test_the_shares_of_phases_add_up_to_one() -> None:
    """Queue takes a fifth and the network 5 %, whatever the length."""
    phases = report(*three())["phases"]
    assert pytest.approx(0.2) == phases["queue"]["share"]
    assert pytest.approx(0.05) == phases["network"]["share"]
    assert phases["unaccounted"]["share"] == 0.0
    assert pytest.approx(1) == sum(each["share"] for each in phases.values())


def test_a_phase_that_is_unknown_is_not_nothing() -> None:
    """Quantiles are over the requests that know it; the share is of all."""
    spans = [side("server", 100, trace="t1", queue=50), side("server", 100, trace="t2")]
    queue = report(*spans)["phases"]["queue"]
    assert (queue["p50"], queue["n_eff"], queue["share"]) == (0.05, 1.0, 0.25)


def test_only_successes_have_latencies() -> None:
    """An error counts among the outcomes and nowhere else."""
    failed = side("client", 9000, trace="t9", outcome="error", **CLIENT)
    found = report(*three(), failed)
    assert found["outcomes"] == {"ok": 3, "error": 1, "cancelled": 0, "abandoned": 0, "rejected": 0}
    assert found["latency"]["e2e"]["p99"] == 4.0
    assert found["slowest"][0]["e2e"] == 4.0


def test_without_a_success_every_figure_is_null() -> None:
    """Two failures: two requests, and no latency instead of a zero."""
    spans = [side("client", 100, trace=each, outcome="error") for each in ("t1", "t2")]
    found = report(*spans)
    assert (found["requests"], found["outcomes"]["error"]) == (2, 2)
    wanted = {"p50": None, "p95": None, "p99": None, "mean": None, "n_eff": 0.0}
    assert wanted == found["latency"]["e2e"]
    assert {**wanted, "share": None} == found["phases"]["queue"]
    assert found["slowest"] == []


def test_requests_that_take_no_time_have_no_shares() -> None:
    """Nothing is divided by zero."""
    assert report(side("server", 0))["phases"]["unaccounted"]["share"] is None


def test_what_cannot_be_used_is_counted_beside() -> None:
    """`requests` are those that can be used."""
    wrong = side("client", 10, trace="t8", attributes={semconv.E2E_US: -1})
    torn = side("client", 10, trace="t9", attributes={semconv.E2E_US: None})
    found = report(*three(), wrong, torn)
    assert (found["requests"], found["invalid"], found["incomplete"]) == (3, 1, 1)


def test_weights_make_a_request_stand_for_many() -> None:
    """One of 1 s that stands for 98 others makes the median, and the slow two the p99."""
    spans = [
        side("client", 1000, trace="t1", attributes={semconv.ADJUSTED_COUNT: 98.0}, **CLIENT),
        side("client", 5000, trace="t2", attributes={semconv.ADJUSTED_COUNT: 1.0}),
        side("client", 9000, trace="t3", attributes={semconv.ADJUSTED_COUNT: 1.0}),
    ]
    found = report(*spans)
    assert (
        found["requests"],
        found["estimated_requests"],
        found["weighted"],
    ) == (3, 100.0, True)
    assert (found["latency"]["e2e"]["p95"], found["latency"]["e2e"]["p99"]) == (1.0, 5.0)
    assert "p99_ci" in found["latency"]["e2e"]


def test_one_request_without_a_weight_makes_it_unweighted() -> None:
    """Then it is not known what the kept ones stand for."""
    spans = [*pair("t1", **{semconv.ADJUSTED_COUNT: 20.0}), *pair("t2")]
    assert report(*spans)["weighted"] is False


def test_groups_have_the_same_figures() -> None:
    """Per model, route and engine; a request that does not say is in none."""
    facts = {semconv.REQUEST_MODEL: "small", semconv.HTTP_ROUTE: "/v1/x", semconv.PROVIDER: "vllm"}
    found = report(*pair("t1", **facts), *pair("t2", scale=3))
    small = found["groups"]["model"]["small"]
    assert {"small"} == set(found["groups"]["model"])
    assert (small["requests"], small["latency"]["e2e"]["p50"]) == (1, 1.0)
    assert {"/v1/x"} == set(found["groups"]["route"])
    assert {"vllm"} == set(found["groups"]["engine"])


def test_groups_are_bounded() -> None:
    """Of more models than anybody reads, the most frequent stay."""
    named = [
        side("server", 10, trace=f"t{n}", attributes={semconv.REQUEST_MODEL: f"m{n}"})
        for n in range(MOST_GROUPS + 5)
    ]
    often = [side("server", 10, trace=f"o{n}", attributes={semconv.REQUEST_MODEL: "often"})
             for n in range(2)]  # fmt: skip
    models = report(*named, *often)["groups"]["model"]
    assert len(models) == MOST_GROUPS
    assert next(iter(models)) == "often"


def test_the_slowest_come_first_and_no_more_than_asked_for() -> None:
    """Two of three, with their ids."""
    found = report(*three(), slowest=2)["slowest"]
    assert [(each["trace_id"], each["span_id"], each["e2e"]) for each in found] == [
        ("t2", "a1", 4.0),
        ("t1", "a1", 2.0),
    ]


def test_the_phases_of_the_slowest_run_from_its_start() -> None:
    """Way out, server, way back, reader: half of the network's 50 ms is the way out."""
    phases = report(*pair())["slowest"][0]["phases"]
    assert [(each["name"], each["start_us"], each["duration_us"]) for each in phases] == [
        ("network", 0, 25_000),
        ("preprocess", 25_000, 20_000),
        ("queue", 45_000, 200_000),
        ("prefill", 245_000, 120_000),
        ("first_token", 365_000, 10_000),
        ("decode", 375_000, 580_000),
        ("delivery", 955_000, 10_000),
        ("network", 965_000, 25_000),
        ("delivery", 990_000, 10_000),
    ]
    sources = ["estimated", *["observed"] * 6, "estimated", "derived"]
    assert sources == [each["source"] for each in phases]


def test_the_report_keeps_its_schema() -> None:
    """With weights, groups and slowest requests."""
    facts = {semconv.REQUEST_MODEL: "small", semconv.ADJUSTED_COUNT: 20.0}
    found = json.loads(as_json(analyse(requests_of(pair("t1", **facts)))))
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(found)
    assert found["schema"] == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("requests",), -1),
        (("latency", "e2e", "p99"), "1 s"),
        (("phases", "queue", "share"), -0.1),
        (("slowest", 0, "phases", 0, "source"), "guessed"),
        (("weighted",), None),
    ],
)
def test_the_schema_can_refuse(path: tuple[Any, ...], value: object) -> None:
    """A schema that takes everything would prove nothing."""
    found = target = report(*pair())
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(ValidationError):
        Draft202012Validator(schema()).validate(found)
