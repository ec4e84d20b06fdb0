"""The mutable side of a request: evidence comes in as it happens, one `Evidence` goes out."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Protocol

from otel_llm.clock import SYSTEM_CLOCK, Anchor, Clock
from otel_llm.timeline.align import aligned
from otel_llm.timeline.chunks import ChunkTimes, nanoseconds
from otel_llm.timeline.evidence import Ending, EngineStamps, Evidence, Sequence, Stamp, Tokens
from otel_llm.timeline.gaps import OutputTimes, summarised
from otel_llm.timeline.marks import Mark, Outcome, Part, Phase, Side, Source


class EngineCall(Protocol):
    """One call into an engine, which can tell at any moment what is known of it."""

    def stamps(self) -> Iterable[EngineStamps]:
        """The engine's stamps as they stand now, one per sequence seen."""

    def tokens(self) -> Tokens:
        """Token counts as they stand now."""


class RequestRecorder:
    """Collects the evidence of one request. One owner; not thread safe.

    All instants given are monotonic nanoseconds of this process (`clock.monotonic_ns`); the
    recorder's anchor, taken when it is made, turns them into wall-clock time.
    """

    __slots__ = (
        "_ending",
        "_marks",
        "_parts",
        "_reported",
        "_tokens",
        "anchor",
        "attempts",
        "calls",
        "chunks",
        "clock",
        "counted_tokens",
        "expected_sequences",
        "finish_reasons",
        "generates",
        "in_turns",
        "lanes",
        "reported_total_ns",
        "role",
        "side",
        "streaming",
    )

    def __init__(
        self, side: Side, *, clock: Clock = SYSTEM_CLOCK, anchor: Anchor | None = None
    ) -> None:
        self.side = side
        self.clock = clock
        self.anchor = anchor or Anchor.take(clock)
        self.streaming = False
        self.generates = True
        self.lanes: list[OutputTimes] = []
        self.calls: list[EngineCall] = []
        self.counted_tokens: int | None = None
        """Tokens of the outputs that were noted one by one; a stated count goes before it."""
        self.expected_sequences = 0
        self.role: str | None = None
        self.attempts = 1
        self.reported_total_ns: int | None = None
        self.chunks: ChunkTimes | None = None
        self.finish_reasons: tuple[str, ...] = ()
        self._marks = {Mark.RECEIVED: Stamp(self.anchor.wall_ns)}
        self._reported: dict[Phase, int] = {}
        self._parts: dict[Part, int] = {}
        self.in_turns = False
        self._tokens: dict[str, int] = {}
        self._ending: dict[str, Any] = {}

    def mark(self, mark: Mark, at_ns: int | None = None, source: Source = Source.OBSERVED) -> None:
        """Record that *mark* happened at *at_ns* (default now); a mark given again moves."""
        at = self.clock.monotonic_ns() if at_ns is None else at_ns
        self._marks[mark] = Stamp(self.anchor.instant(at), source)

    def has(self, mark: Mark) -> bool:
        """True when *mark* was recorded here (an engine's own stamps do not count)."""
        return mark in self._marks

    def reported(self, phase: Phase, duration_ns: int) -> None:
        """Record a duration that the engine states itself, in nanoseconds."""
        self._reported[phase] = duration_ns

    def stated(self, phase: Phase) -> int | None:
        """The duration that the engine stated of *phase*, nanoseconds, or None."""
        return self._reported.get(phase)

    def part(self, part: Part, value: int) -> None:
        """Record a part of a phase, in the unit of its name."""
        self._parts[part] = value

    def usage(self, **counts: int | None) -> None:
        """Record token counts (fields of `Tokens`); later values win, None leaves what was."""
        self._tokens.update({name: count for name, count in counts.items() if count is not None})

    def ending(self, **seen: Any) -> None:
        """Record what was seen of the end (fields of `Ending`).

        The first failure stays, and of a failure and a peer that left the earlier one: an
        exception because the peer has gone is no failure, and leaving after one explains nothing.
        """
        if self._ending.get("failure") or self._ending.get("peer_gone"):
            seen = {key: value for key, value in seen.items() if key not in _FIRST_ONLY}
        self._ending.update(seen)

    def fail(self, outcome: Outcome, error_type: str | None) -> None:
        """Record a failure and its low-cardinality type."""
        self.ending(failure=outcome, error_type=error_type)

    @property
    def status(self) -> int | None:
        """The HTTP status that was seen, or None."""
        return self._ending.get("status")

    @property
    def ended(self) -> bool:
        """True once the protocol's own record of the end was seen."""
        return bool(self._ending.get("end_record"))

    def call(self, call: EngineCall, sequences: int) -> None:
        """Note a call into the engine that asks for *sequences* sequences."""
        self.in_turns = self.in_turns or self.has_output
        self.calls.append(call)
        self.expected_sequences = sequences + (0 if self.in_turns else self.expected_sequences)

    def lane(self) -> OutputTimes:
        """A new series of output times; one for each sequence that is watched."""
        lane = OutputTimes()
        self.lanes.append(lane)
        return lane

    @property
    def tokens(self) -> Tokens:
        """The token counts recorded here; those of engine calls are not among them."""
        return Tokens(**self._tokens)

    @property
    def has_output(self) -> bool:
        """True once any output came."""
        return any(map(_stamps_of, self.lanes))

    def evidence(self) -> Evidence:
        """Everything recorded so far."""
        sequences = self._sequences()
        chunks = self.chunks
        if chunks is not None:
            chunks.fold()
        return Evidence(
            side=self.side,
            streaming=self.streaming,
            generates=self.generates,
            marks=self._all_marks(),
            reported=dict(self._reported),
            reported_total_ns=self.reported_total_ns,
            sequences=sequences,
            engine_silent=bool(self.calls) and not any(map(_marks_of, sequences)),
            expected_sequences=max(1, self.expected_sequences),
            tokens=self._all_tokens(),
            parts=dict(self._parts),
            gaps=chunks.summary() if chunks else summarised(self.lanes),
            first_chunk_ns=self._first_chunk_ns() if chunks else None,
            role=self.role,
            attempts=self.attempts,
            # What the application spent between its reads; before the first, too, if it waited.
            consumer_stall_ns=nanoseconds(chunks.held) if chunks else None,
            buffered_chunks=chunks.buffered if chunks else None,
            finish_reasons=self.finish_reasons or self._last_reasons(sequences),
            ending=Ending(**self._ending),
        )

    def _all_marks(self) -> dict[Mark, Stamp]:
        """Recorded marks, and where none was, what the outputs themselves show."""
        marks = dict(self._marks)
        if Mark.FIRST_TOKEN in marks and self.chunks is not None and self.chunks.last is not None:
            last = self.anchor.instant(nanoseconds(self.chunks.last))
            marks.setdefault(Mark.LAST_TOKEN, Stamp(last))
        firsts, lasts, streamed = [], [], self.streaming
        for lane in self.lanes:
            if lane.first_ns is not None:
                firsts.append(lane.first_ns)
                lasts.append(lane.stamps[-1])
                streamed = streamed or lane.outputs > 1
        if firsts and streamed:
            marks.setdefault(Mark.FIRST_TOKEN, Stamp(self.anchor.instant(min(firsts))))
        if lasts:
            marks.setdefault(Mark.LAST_TOKEN, Stamp(self.anchor.instant(max(lasts))))
        return marks

    def _first_chunk_ns(self) -> int | None:
        if self.chunks is None or self.chunks.first is None:
            return None
        return self.anchor.instant(nanoseconds(self.chunks.first))

    def _sequences(self) -> tuple[Sequence, ...]:
        if not self.calls:
            return ()
        finished = self._marks.get(Mark.FINISHED)
        until = self.anchor.monotonic(finished.at_ns) if finished else self.clock.monotonic_ns()
        found = [aligned(each, self.anchor, until) for call in self.calls for each in call.stamps()]
        if self.in_turns:
            # Not all that was generated is answered; a sum would be taken for usage.
            found = [each._replace(output_tokens=None) for each in found]
        return tuple(found)

    def _last_reasons(self, sequences: tuple[Sequence, ...]) -> tuple[str, ...]:
        """Where the engine was called in turns, why the sequences of the last turn ended."""
        if not self.in_turns:
            return ()
        last = sequences[-self.expected_sequences :]
        return tuple(each.finish_reason for each in last if each.finish_reason)

    def _all_tokens(self) -> Tokens:
        """Recorded counts; those nobody recorded are summed over the calls if all know them."""
        if len(self.calls) == 1 and not self._tokens:
            return self.calls[0].tokens()
        own = self.tokens
        if own.output is None and self.counted_tokens is not None:
            own = own._replace(output=self.counted_tokens)
        # Calls after an output (beam search, tool loops) were given the same prompt again, and
        # not all that they generate is answered.
        if not self.calls or self.in_turns:
            return own
        said = zip(*(call.tokens() for call in self.calls), strict=True)
        return Tokens(*map(_own_or_sum, own, said))


def _own_or_sum(own: int | None, said: tuple[int | None, ...]) -> int | None:
    if own is not None or None in said:
        return own
    return sum(count for count in said if count is not None)


_marks_of, _stamps_of = attrgetter("marks"), attrgetter("stamps")
_FIRST_ONLY = frozenset({"failure", "error_type", "peer_gone"})
