"""The words that end up in attribute names and values, as the design spells them."""

from __future__ import annotations

from otel_llm.timeline import Mark, Outcome, Part, Phase, Side, Source


def test_phases_in_the_order_they_come() -> None:
    """Names are attribute names, and their order is that of a request."""
    expected = "retry preprocess load queue prefill first_token decode delivery"
    assert expected.split() == [each.value for each in Phase]


def test_parts() -> None:
    """A part is named after the phase it lies in, with its unit."""
    expected = {
        "prefill.preempted_us",
        "decode.preempted_us",
        "queue.kv_transfer_us",
        "queue.grammar_us",
        "prefill.chunks",
    }
    assert expected == {each.value for each in Part}


def test_sources() -> None:
    """How a time is known."""
    expected = "observed reported derived estimated"
    assert expected.split() == [each.value for each in Source]


def test_sides() -> None:
    """From where a request is seen."""
    expected = "client proxy server engine"
    assert expected.split() == [each.value for each in Side]


def test_outcomes() -> None:
    """How a request ended."""
    expected = "ok error cancelled abandoned rejected"
    assert expected.split() == [each.value for each in Outcome]


def test_marks_in_their_legal_order() -> None:
    """Instants of a request, sorted as they may come; the first delivery is outside the order."""
    expected = "RECEIVED SENT QUEUED SCHEDULED FIRST_TOKEN LAST_TOKEN FINISHED FIRST_DELIVERED"
    assert expected.split() == [each.name for each in sorted(Mark, key=lambda each: each.value)]
