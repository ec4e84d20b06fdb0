"""A request span that is open: collects evidence, and ends exactly once on every way out."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from otel_llm import semconv
from otel_llm.emit.collecting import aside, collecting
from otel_llm.emit.content import as_messages, content_attributes, prompt_of
from otel_llm.emit.objectives import judged
from otel_llm.emit.request import RequestInfo, request_id
from otel_llm.emit.summary import summary_attributes
from otel_llm.emit.values import Value, clean_text, cleaned
from otel_llm.guard import guard
from otel_llm.timeline import (
    Evidence,
    Mark,
    Outcome,
    Phase,
    RequestRecorder,
    Side,
    Source,
    Timeline,
    resolve,
)

if TYPE_CHECKING:
    from otel_llm.emit.telemetry import Telemetry

_CURRENT = context_api.create_key("otel-llm-request")
_NAMED = context_api.create_key("otel-llm-named-request")
LONGEST_EVENT_NAME = 128


class LiveRequest:
    """One open request: its recorder, its span, and the one place where both end."""

    __slots__ = (
        "__weakref__",
        "_answers",
        "_around",
        "_extra",
        "_joined",
        "_open",
        "_telemetry",
        "_timeline",
        "context",
        "info",
        "on_finish",
        "recorder",
        "reference",
        "span",
    )

    def __init__(
        self,
        telemetry: Telemetry,
        info: RequestInfo,
        recorder: RequestRecorder,
        span: Span,
        parent: Context,
        *,
        joined: bool = False,
    ) -> None:
        self._joined = joined
        self._telemetry = telemetry
        self._open = [True]
        self._timeline: Timeline | None = None
        self._answers: dict[int, Sequence[object]] = {}
        self.on_finish: Callable[[Timeline], None] | None = None
        self._extra: dict[str, object] = {}
        around = telemetry.around
        self._around = None if around is None or not span.is_recording() else around(recorder)
        self.info = info
        self.recorder = recorder
        self.span = span
        # Weak, so that a request nobody holds any more ends at once and not at a collection.
        self.reference = weakref.ref(self)
        self.context = context_api.set_value(
            _CURRENT, (self.reference, span), trace.set_span_in_context(span, parent)
        )

    @property
    def finished(self) -> bool:
        """True once the span has ended."""
        return self._timeline is not None

    @property
    def timeline(self) -> Timeline | None:
        """The computed timeline, or None while the request is open."""
        return self._timeline

    @property
    def silent(self) -> bool:
        """True when nothing will be written of it: neither a span nor a metric."""
        return self._telemetry.silent and not self.span.is_recording()

    @property
    def captures_content(self) -> bool:
        """True when prompts and answers are to be written on this span."""
        wanted = self._telemetry.settings.capture_content and not self._joined
        return wanted and self.span.is_recording()

    def annotate(self, attributes: Mapping[str, object]) -> None:
        """Further attributes, written when the request ends; they never replace the summary.

        Whoever gives `otel_llm.request.id`, it is written as `request_id` has it.
        """
        if not self.finished:
            self._extra.update(attributes)
            if semconv.REQUEST_ID in attributes:
                name = attributes[semconv.REQUEST_ID]
                self._extra[semconv.REQUEST_ID] = request_id(name, self.recorder.side)

    def event(self, name: str, attributes: Mapping[str, object] | None = None) -> None:
        """Write an event on the span, now; the SDK keeps the last 128 and counts the others."""
        if not self.finished and self.span.is_recording():
            now = self.recorder.anchor.instant(self.recorder.clock.monotonic_ns())
            self.span.add_event(
                clean_text(str(name))[:LONGEST_EVENT_NAME], cleaned(attributes or {}), now
            )

    def content(self, attribute: str, content: object) -> None:
        """Write structured content, if capture is on: redacted, cut, without binaries."""
        if not self.finished and self.captures_content:
            with guard("emit.content"):
                self.span.set_attributes(
                    content_attributes(attribute, content, self._telemetry.settings)
                )

    def question(self, body: Mapping[str, Any], names: Iterable[str], stops: object) -> None:
        """What *body* asks, see `prompt_of`, and its stop sequences; written if capture is on."""
        if self.captures_content:
            self.content(semconv.INPUT_MESSAGES, as_messages(prompt_of(body, names)))
            self.content(semconv.STOP_SEQUENCES, stops)

    def answer(self, call: object, messages: Sequence[object]) -> None:
        """What one *call* into the engine has answered so far; written if capture is on."""
        self._answers[id(call)] = messages
        answers = [message for each in self._answers.values() for message in each]
        self.content(semconv.OUTPUT_MESSAGES, answers)

    def fail(self, error: BaseException, *, refused: bool = False) -> None:
        """Note that *error* ended the request; the first failure noted stays.

        Cancellation is told apart from errors; a closed generator means the reader left.
        """
        if isinstance(error, GeneratorExit):
            self.recorder.ending(abandoned=True)
            return
        outcome = Outcome.REJECTED if refused else Outcome.ERROR
        if isinstance(error, asyncio.CancelledError):
            outcome = Outcome.CANCELLED
        self.recorder.fail(outcome, error_type_of(error))

    def abandon(self) -> None:
        """End a request that nobody will finish any more."""
        if not self.finished:
            self.recorder.ending(abandoned=True)
            self.finish()

    def finish(self, at_ns: int | None = None) -> None:
        """End the span and record the metrics; only the first call does anything.

        Args:
            at_ns: When the request ended, monotonic nanoseconds; now by default.
        """
        try:
            self._open.pop()  # one of several threads gets it
        except IndexError:
            return
        self._timeline = NOTHING_KNOWN
        with guard("emit.finish"):
            self._telemetry.closed(self)
            self.recorder.mark(Mark.FINISHED, at_ns)
            self._timeline = resolve(self.recorder.evidence())
            self._emit(self._timeline)
        self.recorder.calls.clear()
        with guard("emit.end"):
            if self.span.is_recording() and not self._joined:
                self.span.end()
        with guard("emit.on_finish"):
            finished, self.on_finish = self.on_finish, None
            if finished is not None:
                finished(self._timeline)

    def finish_anywhere(self) -> None:
        """As `finish`, also where the garbage collector has come by; see `__del__`."""
        if collecting():
            aside(self.finish, self.recorder.clock.monotonic_ns())
        else:
            self.finish()

    def disown(self) -> None:
        """Forget the request without ending it: it belongs to the process that was forked."""
        self._open.clear()
        self._timeline = NOTHING_KNOWN

    def _emit(self, timeline: Timeline) -> None:
        telemetry = self._telemetry
        slo = telemetry.settings.slo
        verdicts = judged(slo, timeline, self.recorder.status) if slo else ()
        if telemetry.instruments.enabled:
            chunks = self.recorder.chunks
            telemetry.instruments.record(
                self.info,
                timeline,
                self.context,
                self._extra,
                verdicts,
                phases_only=self._joined,
                gaps=chunks.gaps if chunks is not None else (),
            )
        if not self.span.is_recording():
            return
        attributes = cleaned(self._extra) if self._extra else {}
        attributes.update(summary_attributes(timeline, telemetry.settings))
        if verdicts and (missed := tuple(name for name, met in verdicts if not met)):
            attributes[semconv.SLO_MISSED] = missed
        self._add_recorded(attributes, timeline)
        if self._around is not None:
            attributes.update(self._around(timeline))
        if self._joined:
            self._join(attributes, timeline)
            return
        self.span.set_attributes(attributes)
        if is_error(timeline, self.recorder.status):
            self.span.set_status(Status(StatusCode.ERROR))
        if telemetry.settings.phase_spans:
            self._emit_phases(timeline)
        self.span.end(None if timeline.end_us is None else timeline.end_us * 1000)

    def _join(self, attributes: dict[str, Value], timeline: Timeline) -> None:
        """Write our own summary on the span of another library, which tells the rest itself."""
        self.span.set_attributes(
            {key: value for key, value in attributes.items() if key.startswith(semconv.OURS)}
        )
        if self._telemetry.settings.phase_spans:
            self._emit_phases(timeline)

    def _add_recorded(self, attributes: dict[str, Value], timeline: Timeline) -> None:
        recorder = self.recorder
        if recorder.role is not None:
            attributes[semconv.ROLE] = recorder.role
        if recorder.attempts > 1:
            attributes[semconv.ATTEMPTS] = recorder.attempts
        if recorder.chunks is not None:
            attributes[semconv.BUFFERED_CHUNKS] = recorder.chunks.buffered
        if timeline.first_chunk_us is not None:
            attributes[semconv.TIME_TO_FIRST_CHUNK] = timeline.first_chunk_us / 1e6

    def _emit_phases(self, timeline: Timeline) -> None:
        spans = [
            (_PHASE_SPAN[phase], _PHASE_SOURCE[source], start_us * 1000, (start_us + us) * 1000)
            for phase, start_us, us, source, _ in timeline.phases
            if us
        ]
        write = self._telemetry.finished_spans
        if write is not None:
            write(self.span, spans)
            return
        start_span, context = self._telemetry.tracer.start_span, self.context
        for name, attributes, start_ns, end_ns in spans:
            start_span(name, context, attributes=attributes, start_time=start_ns).end(end_ns)

    def __del__(self) -> None:
        """End what nobody ended; from a thread if the garbage collector came by."""
        if self._timeline is not None:
            return
        if collecting():
            aside(self.abandon)
        else:
            self.abandon()


_PHASE_SPAN = {phase: semconv.phase_span(phase) for phase in Phase}
_PHASE_SOURCE = {source: {semconv.PHASE_SOURCE: source.value} for source in Source}
NOTHING_KNOWN = resolve(Evidence(Side.ENGINE))
"""The timeline of a request of which nothing could be computed."""


def current_request(context: Context | None = None) -> LiveRequest | None:
    """The open request whose context this is, or None."""
    found = context_api.get_value(_CURRENT, context)
    if not isinstance(found, tuple):
        return None
    live: LiveRequest | None = found[0]()
    return live if live is not None and not live.finished else None


def named(live: LiveRequest) -> Context:
    """The current context with *live* as the request that application code speaks of.

    Engines below still find the request of the server: to them this is no request of their own.
    """
    context = trace.set_span_in_context(live.span)
    return context_api.set_value(_NAMED, (live.reference, context.get(_CURRENT)), context)


def named_request() -> LiveRequest | None:
    """The open request that application code is about: the nearest `named` one, or the server's."""
    found = context_api.get_value(_NAMED)
    # Not if a server's request began below the named one.
    if isinstance(found, tuple) and found[1] is context_api.get_value(_CURRENT):
        live: LiveRequest | None = found[0]()
        if live is not None and not live.finished:
            return live
    return current_request()


def is_left_behind(context: Context) -> bool:
    """Whether a request has left *context* behind and nobody has opened a span in it since.

    A server that resumes reading from within a request (uvicorn, after 64 KiB of body) runs all
    that comes later on that connection in that request's context.
    """
    found = context_api.get_value(_CURRENT, context)
    return isinstance(found, tuple) and found[1] is trace.get_current_span(context)


def error_type_of(error: BaseException) -> str:
    """`error.type` of an exception: its full class name, bare for builtins. Never its message."""
    kind = type(error)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def is_error(timeline: Timeline, http_status: int | None) -> bool:
    """Whether the span's status is ERROR, which depends on the side that speaks."""
    if timeline.side is Side.CLIENT:
        return timeline.outcome in {Outcome.ERROR, Outcome.CANCELLED, Outcome.REJECTED}
    if timeline.outcome is Outcome.REJECTED:
        return http_status is not None and http_status >= 500
    return timeline.outcome is Outcome.ERROR
