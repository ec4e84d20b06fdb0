"""What is known of one reply, as far as it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

from otel_llm import semconv
from otel_llm.emit.values import Value, as_count, as_text
from otel_llm.replies.capture import MOST_CHOICES, Captured, ToolCall
from otel_llm.replies.failure import Failure
from otel_llm.timeline import Outcome, Phase, RequestRecorder
from otel_llm.timeline.evidence import NOTHING

_LONGEST_NAME = 256
_LONGEST_REASON = 64
_NOBODY: frozenset[str] = frozenset()


class Certainty(IntEnum):
    """How sure a sign makes it which engine answered."""

    CHOICE = 1
    HEADER = 2
    FINGERPRINT = 3
    BODY = 4
    NATIVE = 5


class Reply:
    """The facts of one reply; a dialect's `read` adds those of an item. Later values win.

    `usage` has the names of `timeline.Tokens`. `reported` are durations that the engine states,
    nanoseconds; `reported_total_ns` is its own total, of which the queue is what the others leave.
    `end_record` is True once the protocol's own record of the end was seen; `terminator` and
    `malformed` (records that could not be parsed) are counted by whoever reads the bytes.
    `server_engine` and `gateway` are names of `engines`. Everything is None or empty until known.

    Args:
        capture: Keep the answer's text, reasoning and tool calls, 1 MiB at most.
        echo: The prompt was asked to be repeated in front of the answer.
    """

    __slots__ = (
        "_certainty",
        "_stated",
        "attributes",
        "captured",
        "echo",
        "end_record",
        "error",
        "fingerprint",
        "finish_reasons",
        "gateway",
        "malformed",
        "model",
        "preemptions",
        "replica",
        "reported",
        "reported_total_ns",
        "response_id",
        "server_engine",
        "terminator",
        "usage",
    )

    def __init__(self, *, capture: bool = False, echo: bool = False) -> None:
        self.response_id: str | None = None
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.finish_reasons: dict[int, str] = {}
        self.usage: Mapping[str, int] = NOTHING
        self.error: Failure | None = None
        self.end_record = False
        self.terminator = False
        self.malformed = 0
        self.reported: Mapping[Phase, int] = NOTHING
        self.reported_total_ns: int | None = None
        self.preemptions: int | None = None
        self.replica: int | None = None
        self.server_engine: str | None = None
        self.gateway: str | None = None
        self.attributes: Mapping[str, Value] = NOTHING
        self.captured = Captured() if capture else None
        self.echo = echo
        self._stated = _NOBODY
        self._certainty = 0

    def named(self, response_id: object, model: object, fingerprint: object = None) -> None:
        """Names that the reply gives itself; anything but a text leaves what was."""
        self.response_id = _name(response_id) or self.response_id
        self.model = _name(model) or self.model
        self.fingerprint = _name(fingerprint) or self.fingerprint

    def counted(self, *, aside: bool = False, **counts: object) -> None:
        """Token counts; those told *aside* (in timings, in headers) yield to those of the usage."""
        for name, raw in counts.items():
            count = None if raw is None else as_count(raw)
            if count is not None and not (aside and name in self._stated):
                self.usage = {**self.usage, name: count}
                if not aside:
                    self._stated |= {name}

    def finished(self, choice: int, reason: object) -> None:
        """Why one choice ended; nothing if *reason* is no text."""
        text = as_text(reason)
        if text is not None and choice < MOST_CHOICES:
            self.finish_reasons[choice] = text[:_LONGEST_REASON]
            self.end_record = True

    def failed(self, failure: Failure | None) -> None:
        """An error that the reply states; the first one stays."""
        self.error = self.error or failure

    def took(self, phase: Phase, duration_ns: int | None) -> None:
        """How long the engine says *phase* took, nanoseconds; None leaves what was."""
        if duration_ns is not None:
            self.reported = {**self.reported, phase: duration_ns}

    def noted(self, attribute: str, count: object) -> None:
        """A further attribute that is a count; nothing if *count* is none."""
        value = as_count(count)
        if value is not None:
            self.attributes = {**self.attributes, attribute: value}

    def recognised(self, engine: str, certainty: Certainty) -> None:
        """Which engine answered; a later guess wins only if it is more certain."""
        if certainty > self._certainty:
            self.server_engine, self._certainty = engine, certainty

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls the model asks for, in order; none unless content is captured."""
        return self.captured.tool_calls() if self.captured else []

    def messages(self) -> list[dict[str, object]]:
        """The answers in the conventions' form; none unless content is captured."""
        return self.captured.messages(self.finish_reasons) if self.captured else []

    def into(
        self, recorder: RequestRecorder, annotate: Callable[[Mapping[str, object]], None]
    ) -> None:
        """Write all of it: evidence into *recorder*, further attributes through *annotate*."""
        recorder.usage(**self.usage)
        if self.finish_reasons:
            recorder.finish_reasons = tuple(
                reason for _, reason in sorted(self.finish_reasons.items())
            )
        for phase, duration_ns in self.reported.items():
            recorder.reported(phase, duration_ns)
        if self.reported_total_ns is not None:
            recorder.reported_total_ns = self.reported_total_ns
        if self.error is not None:
            outcome = Outcome.REJECTED if self.error.refused else Outcome.ERROR
            recorder.fail(outcome, self.error.type)
        if self._ended(recorder.expected_sequences):
            recorder.ending(end_record=True)
        if self.terminator:
            recorder.ending(terminator=True)
        annotate(self.described())

    def described(self) -> dict[str, Value]:
        """Attributes for everything that is no evidence of time, tokens or outcome."""
        found = {
            semconv.RESPONSE_ID: self.response_id,
            semconv.RESPONSE_MODEL: self.model,
            semconv.SYSTEM_FINGERPRINT: self.fingerprint,
            semconv.ENGINE_NAME: self.server_engine,
            semconv.GATEWAY: self.gateway,
            semconv.REPLICA: self.replica,
            semconv.PREEMPTIONS: self.preemptions,
            semconv.MALFORMED_RECORDS: self.malformed or None,
            semconv.OUTPUT_CUT: True if self.captured and self.captured.cut else None,
            semconv.OUTPUT_ECHOES: True if self.captured and self.echo else None,
        }
        known = {name: value for name, value in found.items() if value is not None}
        return {**self.attributes, **known}

    def _ended(self, expected: int) -> bool:
        """Whether all of it ended: of several choices, one finish reason ends only its own."""
        all_choices = not self.finish_reasons or len(self.finish_reasons) >= max(1, expected)
        return self.end_record and all_choices


def _name(raw: object) -> str | None:
    text = as_text(raw)
    return text and text[:_LONGEST_NAME]
