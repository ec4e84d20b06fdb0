"""The factory of request spans: what samplers see, parents, and the end of the process."""

from __future__ import annotations

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import Link

from otel_llm import __version__, semconv
from otel_llm.clock import Anchor
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Side
from tests.emit.builders import INFO, NAME, Spy, attached, complete, opened, written
from tests.emit.exiting import spans_of_exit

EARLY = """
    from tests.emit.exiting import provider
    made = provider()
    import otel_llm
    otel_llm.instrument(engines=[], tracer_provider=made)
    request = otel_llm.trace_request("chat", model="tiny", provider="demo").__enter__()
"""
LATE = """
    import otel_llm
    from tests.emit.exiting import provider
    otel_llm.instrument(engines=[], tracer_provider=provider())
    request = otel_llm.trace_request("chat", model="tiny", provider="demo").__enter__()
"""
IDENTITY = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "demo",
    "gen_ai.request.model": "tiny",
    "otel_llm.side": "server",
    "server.address": "gpu-7",
    "server.port": 8000,
    "otel_llm.tenant": "acme",
}


class TestStart:
    """What is there from the start."""

    def test_samplers_see_the_identity(self) -> None:
        """Everything that a head sampler may decide on, and the span's name."""
        spy = Spy()
        opened(
            captured_telemetry(sampler=spy),
            server_address="gpu-7",
            server_port=8000,
            attributes={"otel_llm.tenant": "acme"},
        )
        assert spy.seen == [(NAME, IDENTITY)]

    def test_unknown_is_absent(self) -> None:
        """No model, no address, no port: no attribute, and the bare operation as name."""
        spy = Spy()
        opened(captured_telemetry(sampler=spy), model=None)
        expected = {"gen_ai.operation.name", "gen_ai.provider.name", "otel_llm.side"}
        assert ("chat", expected) == (spy.seen[0][0], set(spy.seen[0][1]))

    def test_an_earlier_arrival(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """The span starts when the request arrived, on the microsecond."""
        anchor = Anchor.take(clock)
        clock.advance(0.5)
        complete(captured.telemetry.start(INFO, Side.SERVER, anchor=anchor))
        assert anchor.wall_ns == captured.span(NAME).start_time
        assert written(captured)[semconv.E2E_US] == 500_000

    def test_a_step_of_the_wall_clock(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """It moves where later requests lie, never how long one takes."""
        live = opened(captured)
        clock.advance(0.25)
        clock.step_wall(-3600)
        complete(live)
        span = captured.span(NAME)
        assert span.end_time - span.start_time == 250_000_000

    def test_scope(self, captured: CapturedTelemetry) -> None:
        """Name and version of this library."""
        complete(opened(captured))
        scope = captured.span(NAME).instrumentation_scope
        assert ("otel_llm", __version__) == (scope.name, scope.version)


class TestParents:
    """Whose child the request span is."""

    def test_links(self, captured: CapturedTelemetry) -> None:
        """Spans that belong to the request without being its parent."""
        other = captured.telemetry.tracer.start_span("other")
        link = Link(other.get_span_context())
        complete(captured.telemetry.start(INFO, Side.SERVER, links=[link]))
        assert [other.get_span_context()] == [each.context for each in captured.span(NAME).links]

    def test_the_current_span(self, captured: CapturedTelemetry) -> None:
        """Without another word it is the current one."""
        with captured.telemetry.tracer.start_as_current_span("app"):
            complete(opened(captured))
        assert ["app", f"  {NAME}"] == captured.tree()

    def test_the_one_that_was_named(self, captured: CapturedTelemetry) -> None:
        """An explicit parent wins over the current span."""
        tracer = captured.telemetry.tracer
        named = tracer.start_span("named")
        with tracer.start_as_current_span("current"):
            parent = trace.set_span_in_context(named)
            complete(captured.telemetry.start(INFO, Side.SERVER, parent=parent))
        named.end()
        assert ["named", f"  {NAME}", "current"] == captured.tree()

    def test_nothing_is_attached(self, captured: CapturedTelemetry) -> None:
        """Opening and ending a request leaves the context as it was."""
        before = context_api.get_current()
        live = opened(captured)
        assert before is context_api.get_current()
        complete(live)
        assert before is context_api.get_current()

    def test_other_values_of_the_parent_stay(self, captured: CapturedTelemetry) -> None:
        """Baggage and the like go on to the children."""
        with attached(context_api.set_value("key", "value")):
            live = opened(captured)
        assert context_api.get_value("key", live.context) == "value"


def test_finish_open_ends_what_is_open(captured: CapturedTelemetry) -> None:
    """Requests that are open when the process exits are abandoned; ended ones are not touched."""
    complete(opened(captured, model="done"))
    live = opened(captured)
    captured.telemetry.finish_open()
    captured.telemetry.finish_open()
    assert live.finished
    assert [(each.name, each.attributes[semconv.OUTCOME]) for each in captured.spans] == [
        ("chat done", "ok"),
        (NAME, "abandoned"),
    ]


@pytest.mark.parametrize("script", [EARLY, LATE], ids=["early", "late"])
def test_a_process_that_exits_with_an_open_request(script: str) -> None:
    """Its span is ended and flushed, whether the provider or the library was there first."""
    assert spans_of_exit(script) == [["chat tiny", "abandoned"]]


def test_a_sampler_that_drops_most(clock: ManualClock) -> None:
    """Head sampling by ratio works as for any other span."""
    captured = captured_telemetry(sampler=TraceIdRatioBased(0.0), clock=clock)
    complete(opened(captured))
    assert captured.spans == []
