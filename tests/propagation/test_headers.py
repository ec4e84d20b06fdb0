"""Trace context in carriers of every shape: reading never raises, writing replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context

from otel_llm.propagation.headers import MOST_HEADERS, extract, injected, normalised, replaced

PARENT = "00-11112222333344445555666677778888-aaaabbbbccccdddd-01"
OTHER = "00-99992222333344445555666677778888-aaaabbbbccccdddd-01"
TRACE_ID = 0x11112222333344445555666677778888


class Broken(dict[str, str]):
    """A carrier that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("no")


def trace_id(carrier: Any) -> int:
    """The trace that a carrier names, 0 for none."""
    return trace.get_current_span(extract(carrier)).get_span_context().trace_id


class TestExtract:
    """The context that a carrier names."""

    @pytest.mark.parametrize(
        "carrier",
        [
            {"traceparent": PARENT},
            {"TraceParent": PARENT},
            {b"traceparent": PARENT.encode()},
            {"traceparent": [PARENT]},
            {"traceparent": (PARENT.encode(),)},
            [("traceparent", PARENT)],
            [(b"TRACEPARENT", PARENT.encode())],
            (("traceparent", PARENT), ("traceparent", PARENT)),
            iter([("traceparent", PARENT)]),
        ],
    )
    def test_found(self, carrier: Any) -> None:
        """Mappings and pairs, text and bytes, any case, lists of one."""
        assert trace_id(carrier) == TRACE_ID

    @pytest.mark.parametrize(
        "carrier",
        [
            None,
            {},
            [],
            {"traceparent": None},
            {"traceparent": []},
            {"traceparent": ""},
            {"traceparent": 7},
            {None: PARENT},
            {"traceparent": [PARENT, OTHER]},
            [("traceparent", PARENT), ("traceparent", OTHER)],
            [("traceparent",)],
            ["traceparent"],
            "traceparent",
            b"traceparent",
            7,
            object(),
            Broken(traceparent=PARENT),
        ],
        ids=lambda each: repr(each).partition(" object at")[0],
    )
    def test_nothing_found(self, carrier: Any) -> None:
        """Whatever else it is, it starts a new trace and raises nothing."""
        assert trace_id(carrier) == 0

    def test_carriers_that_fail_while_they_are_read(self) -> None:
        """An iterator may break after its first pair."""

        def pairs() -> Iterator[tuple[str, str]]:
            yield "traceparent", PARENT
            raise OSError

        assert trace_id(pairs()) == 0

    def test_two_different_parents_belong_to_nobody(self) -> None:
        """Neither of them is followed: the request starts a new trace."""
        carrier = [("traceparent", PARENT), ("x", "1"), ("Traceparent", OTHER)]
        assert (trace_id(carrier), normalised(carrier)["x"]) == (0, "1")

    def test_split_baggage_is_one(self) -> None:
        """It may come in several headers."""
        context = extract([("baggage", "a=1"), ("Baggage", "b=2")])
        assert baggage.get_all(context) == {"a": "1", "b": "2"}

    def test_on_top_of_a_context(self) -> None:
        """What the carrier does not name stays."""
        base = baggage.set_baggage("kept", "1", Context())
        found = extract({"traceparent": PARENT}, base)
        assert baggage.get_baggage("kept", found) == "1"

    def test_a_carrier_with_very_many_headers(self) -> None:
        """Reading is bounded."""
        many = [(f"x-{number}", "1") for number in range(MOST_HEADERS)]
        assert len(normalised([*many, ("traceparent", PARENT)])) == MOST_HEADERS

    def test_a_very_long_header(self) -> None:
        """It is left out like any that cannot be read."""
        assert normalised({"x": "y" * 20_000, "z": "1"}) == {"z": "1"}


class TestInject:
    """Headers that carry a context."""

    def test_traceparent(self) -> None:
        """What was extracted goes out again, with the same flag."""
        assert injected(extract({"traceparent": PARENT}))["traceparent"] == PARENT

    def test_nothing_to_carry(self) -> None:
        """No span, no header."""
        assert injected(Context()) == {}


class TestReplaced:
    """Fields written into ASGI headers."""

    def test_each_once(self) -> None:
        """Older values go, in any case; others stay in their order."""
        given = [(b"a", b"1"), (b"TraceParent", b"old"), (b"traceparent", b"older"), (b"b", b"2")]
        expected = [(b"a", b"1"), (b"b", b"2"), (b"traceparent", b"new")]
        assert expected == replaced(given, {"traceparent": "new"})

    def test_the_original_is_not_changed(self) -> None:
        """Servers share their header lists."""
        given = [(b"traceparent", b"old")]
        replaced(given, {"traceparent": "new"})
        assert given == [(b"traceparent", b"old")]
