"""The open request span: it ends exactly once on every way out, and says how it went."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from otel_llm import guard, semconv
from otel_llm.emit.live import LiveRequest, current_request, error_type_of
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import EngineStamps, Mark, Outcome, Side, Tokens
from otel_llm.timeline.chunks import ChunkTimes
from tests.emit.builders import NAME, attached, complete, generated, opened, written


class RefusedError(Exception):
    """An error of a library."""


class Call:
    """A call into an engine that tells nothing."""

    def stamps(self) -> list[EngineStamps]:
        return []

    def tokens(self) -> Tokens:
        return Tokens()


class TestEnding:
    """One span, ended once, with the outcome of the way that it took."""

    def test_finish(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """From its arrival to its end."""
        complete(generated(opened(captured), clock))
        span = captured.span(NAME)
        assert (
            span.attributes[semconv.OUTCOME],
            span.end_time - span.start_time,
        ) == ("ok", 71_000_000)

    def test_finish_twice(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """The second call changes nothing."""
        live = complete(opened(captured))
        timeline = live.timeline
        clock.advance(1)
        live.finish()
        assert (1, timeline) == (len(captured.tree()), live.timeline)

    def test_finish_at_a_time(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """The end may lie a little back, at the last byte."""
        live, end = opened(captured), clock.monotonic_ns() + 5_000_000
        clock.advance(2)
        live.finish(end)
        assert written(captured)[semconv.E2E_US] == 5_000

    def test_fail_and_finish(self, captured: CapturedTelemetry) -> None:
        """The failure is the outcome, whatever came after it."""
        live = opened(captured)
        live.fail(RefusedError("secret"))
        live.recorder.ending(end_record=True)
        live.finish()
        found = written(captured)
        assert ("error", f"{__name__}.RefusedError") == (
            found[semconv.OUTCOME],
            found[semconv.ERROR_TYPE],
        )
        assert "secret" not in str(captured.span(NAME).to_json())

    def test_the_first_failure_stays(self, captured: CapturedTelemetry) -> None:
        """What a failure leads to is not its cause."""
        live = opened(captured)
        live.fail(ValueError())
        live.fail(asyncio.CancelledError())
        live.finish()
        assert written(captured)[semconv.ERROR_TYPE] == "ValueError"

    @pytest.mark.parametrize(
        ("error", "refused", "outcome", "error_type"),
        [
            (ValueError(), False, "error", "ValueError"),
            (ValueError(), True, "rejected", "ValueError"),
            (TimeoutError(), False, "error", "TimeoutError"),
            (asyncio.CancelledError(), False, "cancelled", "asyncio.exceptions.CancelledError"),
            (asyncio.CancelledError(), True, "cancelled", "asyncio.exceptions.CancelledError"),
            (GeneratorExit(), False, "abandoned", None),
            (KeyboardInterrupt(), False, "error", "KeyboardInterrupt"),
        ],
    )
    def test_kinds_of_failure(
        self,
        captured: CapturedTelemetry,
        error: BaseException,
        refused: bool,
        outcome: str,
        error_type: str | None,
    ) -> None:
        """Cancelled, abandoned and refused are not errors, and not each other."""
        live = opened(captured)
        live.fail(error, refused=refused)
        live.finish()
        found = written(captured)
        assert (outcome, error_type) == (found[semconv.OUTCOME], found.get(semconv.ERROR_TYPE))

    def test_abandon(self, captured: CapturedTelemetry) -> None:
        """A request that nobody will finish has ended, incomplete."""
        opened(captured).abandon()
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.INCOMPLETE]) == ("abandoned", True)

    def test_abandon_after_finish(self, captured: CapturedTelemetry) -> None:
        """What ended well stays well."""
        complete(opened(captured)).abandon()
        assert written(captured)[semconv.OUTCOME] == "ok"

    def test_dropped(self, captured: CapturedTelemetry) -> None:
        """The last reference ends it, without a collection."""
        gc.disable()
        try:
            live = opened(captured)
            weak = weakref.ref(live)
            del live
            assert (weak(), len(captured.spans)) == (None, 1)
        finally:
            gc.enable()
        assert written(captured)[semconv.OUTCOME] == "abandoned"

    def test_nothing_counts_after_the_end(self, captured: CapturedTelemetry) -> None:
        """Late evidence is ignored without a warning."""
        live = complete(opened(captured))
        live.annotate({"late": 1})
        live.content(semconv.INPUT_MESSAGES, "late")
        live.fail(ValueError())
        live.finish()
        assert written(captured)[semconv.OUTCOME] == "ok"
        assert "late" not in written(captured)

    def test_it_ends_when_telemetry_fails(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Evidence that breaks our own code costs attributes, never the span."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        live = opened(captured)
        live.recorder.calls.append(object())  # type: ignore[arg-type]
        live.finish()
        assert (captured.tree(), guard.failures["emit.finish"]) == ([NAME], 1)

    def test_the_engine_can_be_freed(self, captured: CapturedTelemetry) -> None:
        """A finished request keeps nothing of the engine's alive."""
        live = opened(captured)
        live.recorder.calls.append(Call())
        weak = weakref.ref(live.recorder.calls[0])
        complete(live)
        assert weak() is None


class TestStatus:
    """The span's status, which depends on the side that speaks."""

    @pytest.mark.parametrize(
        ("side", "outcome", "http_status", "expected"),
        [
            (Side.CLIENT, Outcome.OK, None, StatusCode.UNSET),
            (Side.CLIENT, Outcome.ERROR, None, StatusCode.ERROR),
            (Side.CLIENT, Outcome.CANCELLED, None, StatusCode.ERROR),
            (Side.CLIENT, Outcome.REJECTED, 429, StatusCode.ERROR),
            (Side.CLIENT, Outcome.ABANDONED, None, StatusCode.UNSET),
            (Side.SERVER, Outcome.OK, 200, StatusCode.UNSET),
            (Side.SERVER, Outcome.ERROR, 200, StatusCode.ERROR),
            (Side.SERVER, Outcome.ERROR, 500, StatusCode.ERROR),
            (Side.SERVER, Outcome.CANCELLED, 200, StatusCode.UNSET),
            (Side.SERVER, Outcome.REJECTED, 429, StatusCode.UNSET),
            (Side.SERVER, Outcome.REJECTED, 503, StatusCode.ERROR),
            (Side.SERVER, Outcome.ABANDONED, None, StatusCode.UNSET),
            (Side.PROXY, Outcome.REJECTED, 400, StatusCode.UNSET),
            (Side.ENGINE, Outcome.ERROR, None, StatusCode.ERROR),
            (Side.ENGINE, Outcome.REJECTED, None, StatusCode.UNSET),
        ],
    )
    def test_by_side(
        self,
        captured: CapturedTelemetry,
        side: Side,
        outcome: Outcome,
        http_status: int | None,
        expected: StatusCode,
    ) -> None:
        """ERROR where this side is to blame or was let down; never a description."""
        live = opened(captured, side)
        live.recorder.ending(status=http_status, end_record=outcome is Outcome.OK)
        if outcome is not Outcome.OK:
            live.recorder.fail(outcome, "why")
        live.finish()
        status = captured.span(NAME).status
        assert (expected, None) == (status.status_code, status.description)

    @pytest.mark.parametrize(
        ("side", "kind"),
        [
            (Side.CLIENT, SpanKind.CLIENT),
            (Side.PROXY, SpanKind.INTERNAL),
            (Side.SERVER, SpanKind.INTERNAL),
            (Side.ENGINE, SpanKind.INTERNAL),
        ],
    )
    def test_kind(self, captured: CapturedTelemetry, side: Side, kind: SpanKind) -> None:
        """Only a client's span is of kind CLIENT; SERVER spans belong to HTTP and RPC."""
        complete(opened(captured, side))
        assert kind == captured.span(NAME).kind


class TestPhaseSpans:
    """The view of the summary as child spans."""

    NAMES = ("queue", "prefill", "first_token", "decode", "delivery")

    def test_tile_the_request(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """One after the other from arrival to end, without a gap or an overlap."""
        complete(generated(opened(captured), clock))
        spans = [captured.span(f"llm.{name}") for name in self.NAMES]
        request = captured.span(NAME)
        assert [request.start_time, *[each.end_time for each in spans]] == [
            *[each.start_time for each in spans],
            request.end_time,
        ]

    def test_are_children_and_say_their_source(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Their parent is the request span; none of zero length."""
        complete(generated(opened(captured), clock))
        assert [NAME, *[f"  llm.{name}" for name in self.NAMES]] == captured.tree()
        assert dict(written(captured, "llm.queue")) == {semconv.PHASE_SOURCE: "observed"}

    def test_are_children_where_another_span_is_current(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Whoever ends the request is not their parent."""
        live = generated(opened(captured), clock)
        with captured.telemetry.tracer.start_as_current_span("other"):
            complete(live)
        parents = {captured.span(f"llm.{name}").parent.span_id for name in self.NAMES}
        assert {captured.span(NAME).context.span_id} == parents

    def test_can_be_switched_off(self, clock: ManualClock) -> None:
        """The summary is the same without them."""
        captured = captured_telemetry(EmitSettings(phase_spans=False), clock=clock)
        complete(generated(opened(captured), clock))
        assert captured.tree() == [NAME]
        assert written(captured)["otel_llm.queue_us"] == 10_000

    def test_agree_with_the_summary(self, captured: CapturedTelemetry, clock: ManualClock) -> None:
        """To the microsecond, whatever the nanoseconds are."""
        clock.advance(0.000_000_499)
        live = opened(captured)
        clock.advance(0.000_000_700)
        live.recorder.mark(Mark.QUEUED)
        clock.advance(0.010_000_499)
        live.recorder.mark(Mark.SCHEDULED)
        complete(live)
        span = captured.span("llm.queue")
        assert written(captured)["otel_llm.queue_us"] * 1000 == span.end_time - span.start_time


class TestAnnotations:
    """Further attributes of the request span."""

    def test_are_written_clean(self, captured: CapturedTelemetry) -> None:
        """Unexportable ones are left out."""
        live = opened(captured)
        live.annotate({"app.a": "x", "app.none": None, "app.object": object()})
        complete(live)
        assert {"app.a"} == {name for name in written(captured) if name.startswith("app.")}

    def test_what_the_recorder_knows(self, captured: CapturedTelemetry) -> None:
        """Role, attempts and buffered chunks, where there is something to say."""
        live = opened(captured)
        live.recorder.role, live.recorder.attempts = "decode", 3
        live.recorder.chunks = ChunkTimes(1.0)
        complete(live)
        names = (semconv.ROLE, semconv.ATTEMPTS, semconv.BUFFERED_CHUNKS)
        assert [written(captured)[name] for name in names] == ["decode", 3, 0]

    def test_one_attempt_is_not_mentioned(self, captured: CapturedTelemetry) -> None:
        """Nor is an unknown role."""
        complete(opened(captured))
        unsaid = {semconv.ROLE, semconv.ATTEMPTS, semconv.BUFFERED_CHUNKS}
        assert not unsaid & set(written(captured))


class TestCurrent:
    """The open request that a context belongs to."""

    def test_is_found_while_open(self, captured: CapturedTelemetry) -> None:
        """In its own context and nowhere else."""
        live = opened(captured)
        assert (None, live) == (current_request(), current_request(live.context))
        with attached(live.context):
            assert live is current_request()

    def test_is_not_found_after_its_end(self, captured: CapturedTelemetry) -> None:
        """Work in the background does not count any more."""
        live = complete(opened(captured))
        assert current_request(live.context) is None

    def test_its_context_does_not_keep_it_open(self, captured: CapturedTelemetry) -> None:
        """A task that inherited the context is no owner."""
        live = opened(captured)
        context = live.context
        del live
        assert (current_request(context), len(captured.spans)) == (None, 1)

    def test_its_context_carries_its_span(self, captured: CapturedTelemetry) -> None:
        """Spans started there are its children."""
        live = opened(captured)
        assert live.span is trace.get_current_span(live.context)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("secret"), "ValueError"),
        (RefusedError("secret"), f"{__name__}.RefusedError"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
    ],
)
def test_error_type_is_the_class(error: BaseException, expected: str) -> None:
    """Its full name, bare for builtins, and never the message."""
    assert expected == error_type_of(error)


def test_content_is_captured_only_on_recording_spans(captured: CapturedTelemetry) -> None:
    """Whoever gathers content can ask first."""
    capturing = captured_telemetry(EmitSettings(capture_content=True))
    live: LiveRequest = opened(capturing)
    assert (opened(captured).captures_content, live.captures_content) == (False, True)
    assert not complete(live).captures_content
