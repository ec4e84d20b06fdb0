"""`trace_request` without a stream: what is recorded, how it ends, what is current."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as context_api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

import otel_llm
from otel_llm import ConfigurationError, Mark, Part, Phase, config, semconv
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import Spy, attached
from tests.tracing.builders import NAME, outcome, request

PARENT = "00-11112222333344445555666677778888-aaaabbbbccccdddd-01"
TRACE_ID = 0x11112222333344445555666677778888
CANCELLED = "asyncio.exceptions.CancelledError"


def attributes(captured: CapturedTelemetry) -> dict[str, Any]:
    return dict(captured.span(NAME).attributes)


class Reason(Enum):
    """Finish reasons of a client library."""

    STOP = "stop"


class TestBlock:
    """From entering the block to leaving it."""

    def test_lasts_as_long_as_the_block(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Neither more nor less."""
        with request():
            clock.advance(0.25)
        clock.advance(9)
        assert attributes(in_force)[semconv.E2E_US] == 250_000
        assert outcome(in_force) == ("ok", None, False)

    async def test_async(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """`async with` is the same."""
        async with request():
            clock.advance(0.25)
        assert attributes(in_force)[semconv.E2E_US] == 250_000

    def test_nothing_before_it_is_entered(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Making it starts nothing."""
        made = request()
        clock.advance(9)
        with made:
            clock.advance(0.25)
        assert attributes(in_force)[semconv.E2E_US] == 250_000

    @pytest.mark.parametrize(
        ("side", "kind"),
        [
            ("client", SpanKind.CLIENT),
            (otel_llm.Side.ENGINE, SpanKind.INTERNAL),
            ("server", SpanKind.INTERNAL),
            ("proxy", SpanKind.INTERNAL),
        ],
    )
    def test_sides(self, in_force: CapturedTelemetry, side: Any, kind: SpanKind) -> None:
        """By name or by member; the kind follows."""
        with request(side=side):
            pass
        span = in_force.span(NAME)
        assert (kind, str(side)) == (span.kind, span.attributes[semconv.SIDE])

    def test_a_wrong_side(self) -> None:
        """Told at once, with what is accepted."""
        with pytest.raises(ConfigurationError, match=r"side is 'middle'.*client, proxy, server"):
            request(side="middle")

    def test_attributes_are_there_from_the_start(self) -> None:
        """Samplers see them, cleaned."""
        spy = Spy()
        config.RUNTIME.telemetry = captured_telemetry(sampler=spy).telemetry
        with request(
            server_address="gpu-7",
            server_port=8000,
            attributes={"app.plan": "gold", "app.no": None},
        ):
            pass
        seen = spy.seen[0][1]
        assert (
            seen["server.address"],
            seen["server.port"],
            seen["app.plan"],
        ) == ("gpu-7", 8000, "gold")
        assert "app.no" not in seen

    def test_without_telemetry(self) -> None:
        """Without a provider everything can be called and nothing happens."""
        with request(carrier={"traceparent": PARENT}) as r:
            assert list(r.stream(["a"])) == ["a"]
            r.usage(input_tokens=1)

    def test_an_empty_model(self, in_force: CapturedTelemetry) -> None:
        """Nor is it an empty text."""
        with request(model=""):
            pass
        assert semconv.REQUEST_MODEL not in in_force.spans[0].attributes

    @pytest.mark.parametrize("field", ["model", "reason", "finish"])
    def test_half_an_emoji(self, in_force: CapturedTelemetry, field: str) -> None:
        """An exporter that is not ours loses the attribute or, for a name, the whole batch."""
        with request(model="cut \ud83e" if field == "model" else "tiny") as r:
            if field == "reason":
                r.reject("cut \ud83e")
            if field == "finish":
                r.finish_reason("cut \ud83e")
        texts = [f"{each.name} {value}" for each in in_force.spans for value in _texts(each)]
        assert not [text for text in texts if "\ud83e" in text]


class TestEndings:
    """Every way out of the block."""

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ValueError("secret"), ("error", "ValueError", False)),
            (TimeoutError("secret"), ("error", "TimeoutError", False)),
            (asyncio.CancelledError("secret"), ("cancelled", CANCELLED, False)),
            (KeyboardInterrupt("secret"), ("error", "KeyboardInterrupt", False)),
        ],
    )
    def test_an_exception(
        self, in_force: CapturedTelemetry, error: BaseException, expected: Any
    ) -> None:
        """It goes on unchanged; its class is recorded, its message is not."""
        with pytest.raises(type(error)) as raised, request():
            raise error
        assert error is raised.value
        assert expected == outcome(in_force)
        assert "secret" not in in_force.span(NAME).to_json()
        assert not in_force.span(NAME).events

    async def test_a_timeout(self, in_force: CapturedTelemetry) -> None:
        """`wait_for` cancels, and its own error reaches the caller."""

        async def call() -> None:
            async with request(side="client"):
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(), 0.01)
        assert outcome(in_force) == ("cancelled", CANCELLED, False)
        assert in_force.span(NAME).status.status_code is StatusCode.ERROR

    async def test_a_cancelled_task(self, in_force: CapturedTelemetry) -> None:
        """The task counts as cancelled, as without us."""

        async def call() -> None:
            with request():
                await asyncio.Event().wait()

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (task.cancelled(), outcome(in_force)[0]) == (True, "cancelled")

    async def test_a_cancelled_group(self, in_force: CapturedTelemetry) -> None:
        """Each of the group's requests has ended, cancelled."""

        async def call() -> None:
            async with request():
                await asyncio.Event().wait()

        async def fail() -> None:
            await asyncio.sleep(0)
            raise LookupError

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for work in (call(), call(), fail()):
                    group.create_task(work)

        with pytest.raises(ExceptionGroup):
            await all_of_them()
        found = [each.attributes[semconv.OUTCOME] for each in in_force.spans]
        assert found == ["cancelled", "cancelled"]

    def test_a_generator_that_is_closed_within_the_block(self, in_force: CapturedTelemetry) -> None:
        """A block may hold a `yield`: whoever closes the generator abandons the request."""

        def items() -> Iterator[int]:
            with request():
                yield 1

        before = context_api.get_current()
        generator = items()
        next(generator)
        generator.close()  # type: ignore[attr-defined]
        assert outcome(in_force) == ("abandoned", None, False)
        assert before is context_api.get_current()

    def test_refused(self, in_force: CapturedTelemetry) -> None:
        """The reason is the type."""
        with request(side="client") as r:
            r.reject("rate_limited")
        assert outcome(in_force) == ("rejected", "rate_limited", False)

    def test_reject_and_raise(self, in_force: CapturedTelemetry) -> None:
        """What was said first stays."""

        def refuse() -> None:
            with request() as r:
                r.reject("overloaded")
                raise LookupError

        with pytest.raises(LookupError):
            refuse()
        assert outcome(in_force) == ("rejected", "overloaded", False)


class TestEvidence:
    """What the caller says of the request."""

    def test_marks(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Now, or at a time of the same monotonic clock."""
        with request() as r:
            r.mark(Mark.QUEUED, clock.monotonic_ns() + 5_000_000)
            clock.advance(0.030)
            r.mark(Mark.SCHEDULED)
        assert attributes(in_force)["otel_llm.queue_us"] == 25_000

    def test_usage(self, in_force: CapturedTelemetry) -> None:
        """Each count under its name; None says nothing."""
        with request() as r:
            r.usage(input_tokens=1000, cached_tokens=960, reasoning_tokens=None)
            r.usage(output_tokens=300, reasoning_tokens=280, cache_written_tokens=0)
        expected = {
            "gen_ai.usage.input_tokens": 1000,
            "gen_ai.usage.output_tokens": 300,
            "gen_ai.usage.cache_read.input_tokens": 960,
            "gen_ai.usage.reasoning.output_tokens": 280,
            "gen_ai.usage.cache_creation.input_tokens": 0,
        }
        found = attributes(in_force)
        assert expected == {name: n for name, n in found.items() if name.startswith("gen_ai.usage")}

    def test_running_usage(self, in_force: CapturedTelemetry) -> None:
        """Cumulative counts replace each other."""
        with request() as r:
            for count in (0, 1, 2, 3, 3):
                r.usage(output_tokens=count)
        assert attributes(in_force)[semconv.OUTPUT_TOKENS] == 3

    @pytest.mark.parametrize(("given", "expected"), [(12.0, 12), ("12", 12), (-1, None)])
    def test_usage_of_any_type(
        self, in_force: CapturedTelemetry, given: Any, expected: int | None
    ) -> None:
        """Counts are integers, or nothing."""
        with request() as r:
            r.usage(input_tokens=given)
        assert expected == attributes(in_force).get(semconv.INPUT_TOKENS)

    def test_outputs(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Tokens are summed, gaps lie between outputs."""
        with request() as r:
            for n_tokens in (1, 3, 2):
                clock.advance(0.010)
                r.output(n_tokens)
        found = attributes(in_force)
        assert (
            found[semconv.OUTPUT_TOKENS],
            found[semconv.ITL_P50_US],
            found[semconv.TOKENS_PER_OUTPUT],
        ) == (6, 10_000, 2.0)

    def test_usage_wins_over_counted_outputs(self, in_force: CapturedTelemetry) -> None:
        """The engine's own count is the truth."""
        with request() as r:
            r.output(1)
            r.usage(output_tokens=5)
        assert attributes(in_force)[semconv.OUTPUT_TOKENS] == 5

    def test_very_many_outputs(self, in_force: CapturedTelemetry) -> None:
        """Memory does not grow with them."""
        with request() as r:
            for _ in range(10_000):
                r.output()
            live = r._live
            assert live is not None
            assert len(live.recorder.lanes[0].stamps) < 2049
        assert attributes(in_force)[semconv.OUTPUT_TOKENS] == 10_000

    def test_reported(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """A duration in seconds that the engine states."""
        with request() as r:
            r.mark(Mark.QUEUED)
            clock.advance(0.5)
            r.mark(Mark.FIRST_TOKEN)
            r.reported(Phase.PREFILL, 0.125)
            r.part(Part.PREFILL_CHUNKS, 3)
        found = attributes(in_force)
        assert (found["otel_llm.prefill_us"], found["otel_llm.prefill.chunks"]) == (125_000, 3)
        assert "prefill=reported" in found[semconv.SOURCES]

    def test_finish_reasons(self, in_force: CapturedTelemetry) -> None:
        """One per sequence."""
        with request() as r:
            r.finish_reason("stop", "length")
        assert attributes(in_force)[semconv.FINISH_REASONS] == ("stop", "length")

    def test_set(self, in_force: CapturedTelemetry) -> None:
        """Further attributes, cleaned."""
        with request() as r:
            r.set({"gen_ai.response.model": "tiny-2", "app.none": None})
        found = attributes(in_force)
        assert found["gen_ai.response.model"] == "tiny-2"
        assert "app.none" not in found

    def test_after_the_end(self, in_force: CapturedTelemetry) -> None:
        """Late calls are ignored."""
        with request() as r:
            pass
        r.output()
        r.usage(output_tokens=9)
        r.mark(Mark.QUEUED)
        r.set({"app.late": 1})
        r.reject("late")
        assert semconv.OUTPUT_TOKENS not in attributes(in_force)
        assert outcome(in_force) == ("ok", None, False)

    def test_before_the_start(self, in_force: CapturedTelemetry) -> None:
        """Early ones too."""
        r = request()
        r.output()
        r.usage(output_tokens=9)
        r.finish_reason("stop")
        with r:
            pass
        assert semconv.OUTPUT_TOKENS not in attributes(in_force)

    def test_a_finish_reason_that_is_an_enum(self, in_force: CapturedTelemetry) -> None:
        """An enum becomes its text."""
        with request() as r:
            r.finish_reason(Reason.STOP)  # type: ignore[arg-type]
        assert in_force.span(NAME).attributes[semconv.FINISH_REASONS] == ("stop",)

    def test_an_unknown_finish_reason(self, in_force: CapturedTelemetry) -> None:
        """Unknown is absent, never the text `None`."""
        with request() as r:
            r.finish_reason(None)  # type: ignore[arg-type]
        assert semconv.FINISH_REASONS not in in_force.span(NAME).attributes

    @pytest.mark.parametrize("value", [{"x": float("nan")}, {("a", 1): 2}])
    def test_structure_that_is_no_json(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, value: Any
    ) -> None:
        """One odd attribute costs itself and nothing else."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        with request() as r:
            r.set({"app.structure": value})
        assert in_force.span(NAME).attributes.get(semconv.OUTCOME) == "ok"


class TestContext:
    """What is current, and what goes out."""

    def test_never_current_by_itself(self, in_force: CapturedTelemetry) -> None:
        """A block may hold a `yield`, so nothing is attached."""
        before = context_api.get_current()
        with request():
            assert before is context_api.get_current()
        assert before is context_api.get_current()

    def test_active(self, in_force: CapturedTelemetry) -> None:
        """On request it is, for as long as that block."""
        with request() as r:
            with r.active(), in_force.telemetry.tracer.start_as_current_span("call"):
                pass
            assert trace.get_current_span() is trace.INVALID_SPAN
        assert [each for each in in_force.tree() if "llm." not in each] == [NAME, "  call"]

    def test_an_exception_while_active(self, in_force: CapturedTelemetry) -> None:
        """No event with a message, and the block's own verdict."""
        with pytest.raises(ValueError, match="secret"), request() as r, r.active():
            raise ValueError("secret")
        assert outcome(in_force) == ("error", "ValueError", False)
        assert "secret" not in in_force.span(NAME).to_json()

    def test_the_context_for_propagation(self, in_force: CapturedTelemetry) -> None:
        """It carries the request's span."""
        with request() as r:
            carried = trace.get_current_span(r.context).get_span_context()
        assert in_force.span(NAME).context.span_id == carried.span_id

    def test_child_of_the_current_span(self, in_force: CapturedTelemetry) -> None:
        """Without a carrier."""
        with in_force.telemetry.tracer.start_as_current_span("app"), request():
            pass
        assert ["app", f"  {NAME}"] == [each for each in in_force.tree() if "llm." not in each]

    @pytest.mark.parametrize(
        "carrier",
        [{"traceparent": PARENT}, {"TraceParent": [PARENT]}, [(b"traceparent", PARENT.encode())]],
    )
    def test_child_of_the_carriers(self, in_force: CapturedTelemetry, carrier: Any) -> None:
        """A carrier of any shape wins over the current span."""
        with in_force.telemetry.tracer.start_as_current_span("app"), request(carrier=carrier):
            pass
        assert in_force.span(NAME).context.trace_id == TRACE_ID

    @pytest.mark.parametrize("carrier", [None, {}, [], {"traceparent": None}, {"x": "y"}, 7])
    def test_carriers_without_a_parent(self, in_force: CapturedTelemetry, carrier: Any) -> None:
        """A root of its own."""
        with request(carrier=carrier):
            pass
        assert in_force.span(NAME).parent is None

    def test_baggage_of_the_carrier_goes_on(self, in_force: CapturedTelemetry) -> None:
        """It is in the request's context."""
        with request(carrier={"baggage": "plan=gold"}) as r:
            assert baggage.get_baggage("plan", r.context) == "gold"

    def test_identity_from_the_carrier(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Allow-listed headers and baggage become attributes."""
        monkeypatch.setenv("OTEL_LLM_CONTEXT_KEYS", "tenant=header:x-tenant, plan")
        with request(carrier={"X-Tenant": "acme", "baggage": "plan=gold"}):
            pass
        found = attributes(in_force)
        assert (found["otel_llm.tenant"], found["otel_llm.context.plan"]) == ("acme", "gold")

    def test_identity_from_the_current_context(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that extracted the baggage itself has it in its context."""
        monkeypatch.setenv("OTEL_LLM_CONTEXT_KEYS", "tenant")
        with attached(baggage.set_baggage("tenant", "acme", Context())), request():
            pass
        assert in_force.span(NAME).attributes.get("otel_llm.tenant") == "acme"

    def test_an_untrusted_carrier(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At a public edge the caller's trace is linked, whoever reads the headers."""
        monkeypatch.setenv("OTEL_LLM_TRUST_REMOTE", "false")
        with request(side="server", carrier={"traceparent": PARENT}):
            pass
        assert (in_force.span(NAME).parent, len(in_force.span(NAME).links)) == (None, 1)


class TestSwitchedOff:
    """`OTEL_LLM_DISABLED` and `OTEL_SDK_DISABLED`."""

    @pytest.mark.parametrize("name", ["OTEL_LLM_DISABLED", "OTEL_SDK_DISABLED"])
    def test_nothing_is_written(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """And nothing is different for the application."""
        monkeypatch.setenv(name, "true")
        given = iter("abc")
        with request() as r, r.active():
            assert given is r.stream(given)
            r.mark(Mark.QUEUED)
            r.output()
            r.usage(input_tokens=1)
            r.reported(Phase.QUEUE, 1)
            r.part(Part.PREFILL_CHUNKS, 1)
            r.finish_reason("stop")
            r.set({"a": 1})
            r.reject("no")
            assert context_api.get_current() == r.context
        assert in_force.spans == []

    def test_an_exception_goes_through(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As from any block."""
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        with pytest.raises(LookupError), request():
            raise LookupError

    async def test_the_current_span_stays(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`active` leaves it as it is."""
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        span = in_force.telemetry.tracer.start_span("app")
        with attached(trace.set_span_in_context(span)), request() as r, r.active():
            assert span is trace.get_current_span()


def test_a_tracer_that_fails_does_not_stop_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs, without a span."""

    class Broken(Spy):
        """A sampler with a fault."""

        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError

    monkeypatch.setenv("OTEL_LLM_STRICT", "0")
    config.RUNTIME.telemetry = captured_telemetry(sampler=Broken()).telemetry
    with request() as r:
        assert list(r.stream(["a"])) == ["a"]


def _texts(span: ReadableSpan) -> Iterator[str]:
    for value in (span.attributes or {}).values():
        yield from [value] if isinstance(value, str) else _items(value)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else ()
