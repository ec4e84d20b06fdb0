"""Field cases of kind PRO: the sampled flag, and carriers of unexpected shape."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from otel_llm import config, semconv, trace_request
from otel_llm.propagation.headers import injected
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes.asgi import Connection, scope
from tests.servers.builders import ANSWER, serve

DATA = Path(__file__).parent / "data"
CARRIERS = json.loads((DATA / "D-PRO-03.json").read_text())
FLAGS = json.loads((DATA / "D-PRO-01.json").read_text())
REMOTE = CARRIERS["traceparent"].split("-")[1]


def carrier(case: dict[str, Any]) -> Any:
    """The carrier of a case, with bytes where it says so."""
    if "carrier_bytes_utf8" in case:
        return [(name.encode(), value.encode()) for name, value in case["carrier_bytes_utf8"]]
    return case["carrier"]


def pairs(given: Any) -> list[tuple[bytes, bytes]]:
    """A carrier as headers of a server, one pair per value."""
    if isinstance(given, list):
        return given
    return [
        (name.encode(), value.encode())
        for name, values in (given or {}).items()
        for value in ([values] if isinstance(values, str) else values or [])
    ]


class TestFlag:
    """D-PRO-01: an inbound flag 00 with one outgoing hop."""

    @pytest.mark.parametrize(
        ("sampler", "name", "kept"),
        [(ParentBased(ALWAYS_ON), "parent_based", 0), (ALWAYS_ON, "forced", 2)],
    )
    async def test_comes_from_the_sampling_decision(
        self, sampler: Sampler, name: str, kept: int
    ) -> None:
        """Outgoing flag and kept spans agree, the trace is the caller's, metrics are recorded."""
        captured, sent = captured_telemetry(sampler=sampler), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            sent.append(injected(trace.set_span_in_context(trace.get_current_span())))
            await ANSWER(scope, receive, send)

        await serve(app, captured, headers=FLAGS["inbound"])
        _, trace_id, _, flag = sent[0]["traceparent"].split("-")
        assert (REMOTE, FLAGS["expected_outgoing_flags"][name]) == (trace_id, flag)
        assert (kept, 1) == (
            len(captured.spans),
            captured.points(semconv.SERVER_DURATION)[0].count,
        )

    async def test_says_why_there_are_no_spans(self, caplog: pytest.LogCaptureFixture) -> None:
        """One debug line, where the caller's flag was obeyed."""
        caplog.set_level(logging.DEBUG, "otel_llm")
        captured = captured_telemetry(sampler=ParentBased(ALWAYS_ON))
        await serve(ANSWER, captured, headers=FLAGS["inbound"])
        (record,) = caplog.records
        assert "not sampled" in record.getMessage()


@pytest.mark.parametrize("case", CARRIERS["carriers"], ids=lambda case: case["name"])
class TestCarriers:
    """D-PRO-03: two different values start a new trace; everything readable is followed."""

    def test_trace_request(self, captured: CapturedTelemetry, case: dict[str, Any]) -> None:
        """The request is traced whatever the carrier is."""
        config.RUNTIME.telemetry = captured.telemetry
        with trace_request("chat", provider="demo", carrier=carrier(case)):
            pass
        (span,) = captured.spans
        assert (case["parent"] is True) == (f"{span.context.trace_id:032x}" == REMOTE)

    async def test_server(self, captured: CapturedTelemetry, case: dict[str, Any]) -> None:
        """The same choice in a server, where headers are pairs of bytes."""
        connection = Connection()
        await InferenceMiddleware(ANSWER, captured.telemetry)(
            scope() | {"headers": pairs(carrier(case))}, connection.receive, connection.send
        )
        (server,) = [each for each in captured.spans if each.name.startswith("POST")]
        assert (case["parent"] is True) == (f"{server.context.trace_id:032x}" == REMOTE)
        assert len(connection.sent) == 2
