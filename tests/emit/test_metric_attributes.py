"""Facts of the application on metrics: only those allowed, and not too many values."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.emit.metrics import LONGEST_VALUE, MOST_VALUES, OTHER
from otel_llm.emit.objectives import parse_objectives
from otel_llm.emit.settings import EmitSettings, attribute_names
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Side
from tests.emit.builders import complete, generated, opened, written

PLAN = "customer.plan"
DURATION = semconv.SERVER_DURATION


class Plan(Enum):
    """What an application may have."""

    GOLD = "gold"


def allowing(*names: str, clock: ManualClock) -> CapturedTelemetry:
    """Telemetry with these attributes on metrics."""
    settings = EmitSettings(metric_attributes=names, slo=parse_objectives("ok"))
    return captured_telemetry(settings, clock=clock)


def answered(captured: CapturedTelemetry, side: Side = Side.SERVER, **facts: Any) -> None:
    """A request that ends well, of which the application knows these facts."""
    live = opened(captured, side)
    live.annotate({key.replace("_", "."): value for key, value in facts.items()})
    complete(live)


def values(captured: CapturedTelemetry, metric: str = DURATION) -> list[Any]:
    """The plan of each series."""
    return [each.attributes.get(PLAN) for each in captured.points(metric)]


@pytest.mark.parametrize(
    "metric",
    [
        DURATION,
        semconv.SERVER_TTFT,
        semconv.SERVER_TPOT,
        semconv.PHASE_DURATION,
        semconv.SLO_REQUESTS,
    ],
)
def test_on_every_metric_of_a_server(clock: ManualClock, metric: str) -> None:
    """An attribute that is allowed is on all series of the request."""
    captured = allowing(PLAN, clock=clock)
    live = generated(opened(captured), clock)
    live.annotate({PLAN: "gold"})
    complete(live)
    assert set(values(captured, metric)) == {"gold"}


@pytest.mark.parametrize(
    "metric", ["gen_ai.client.operation.duration", "gen_ai.client.token.usage"]
)
def test_on_every_metric_of_a_client(clock: ManualClock, metric: str) -> None:
    """Likewise."""
    captured = allowing(PLAN, clock=clock)
    live = generated(opened(captured, Side.CLIENT), clock)
    live.annotate({PLAN: "gold"})
    complete(live)
    assert set(values(captured, metric)) == {"gold"}


def test_nothing_unless_allowed(captured: CapturedTelemetry) -> None:
    """By default facts are on the span only."""
    answered(captured, customer_plan="gold")
    assert values(captured) == [None]
    assert written(captured)[PLAN] == "gold"


def test_those_not_allowed_stay_off(clock: ManualClock) -> None:
    """One name allows one attribute."""
    captured = allowing(PLAN, clock=clock)
    answered(captured, customer_plan="gold", customer_id="c-17")
    assert "c-17" not in str(captured.points(DURATION))


def test_given_at_the_start(clock: ManualClock) -> None:
    """Attributes of `trace_request` and identity keys count too."""
    captured = allowing(PLAN, clock=clock)
    complete(opened(captured, attributes={PLAN: "gold"}))
    assert values(captured) == ["gold"]


def test_absent_facts(clock: ManualClock) -> None:
    """A request without one is a series without the attribute."""
    captured = allowing(PLAN, clock=clock)
    answered(captured)
    assert values(captured) == [None]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Plan.GOLD, "gold"),
        (True, "true"),
        (3, "3"),
        (0, "0"),
        ("x" * 99, "x" * LONGEST_VALUE),
        (None, None),
        ("", None),
        (["a", "b"], None),
        (float("nan"), None),
    ],
)
def test_values_are_short_texts(clock: ManualClock, given: Any, text: str | None) -> None:
    """At most 64 characters; what is no single value is left out."""
    captured = allowing(PLAN, clock=clock)
    answered(captured, customer_plan=given)
    assert values(captured) == [text]


def test_their_number_is_bounded(clock: ManualClock) -> None:
    """The first ones keep their values, all others share one; each attribute for itself."""
    captured = allowing(PLAN, "customer.id", clock=clock)
    for number in range(MOST_VALUES + 7):
        answered(captured, customer_plan=f"p{number}", customer_id="one")
    counts = {each.attributes[PLAN]: each.count for each in captured.points(DURATION)}
    assert {f"p{number}" for number in range(MOST_VALUES)} | {OTHER} == set(counts)
    assert counts[OTHER] == 7
    assert {each.attributes["customer.id"] for each in captured.points(DURATION)} == {"one"}


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        (semconv.REQUEST_MODEL, DURATION),
        (semconv.PHASE, semconv.PHASE_DURATION),
        (semconv.SLO_RESULT, semconv.SLO_REQUESTS),
    ],
)
def test_ours_stay(clock: ManualClock, name: str, metric: str) -> None:
    """An application that allows a name of ours does not replace what it says."""
    captured = allowing(name, clock=clock)
    live = generated(opened(captured), clock)
    live.annotate({name: "mine"})
    complete(live)
    assert "mine" not in {each.attributes.get(name) for each in captured.points(metric)}


@pytest.mark.parametrize("given", [" a.b, c,,a.b ", ["a.b", "c", ""], iter(("a.b", "c"))])
def test_names_as_given(given: Any) -> None:
    """As in the environment or as a list; a text is not taken for a list of letters."""
    assert attribute_names(given) == ("a.b", "c")
