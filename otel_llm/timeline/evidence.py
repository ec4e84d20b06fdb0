"""What was seen of one request, before anything is computed from it. Values, no behaviour.

Everything here may be missing or wrong: engines leave milestones at zero, clocks step, libraries
report durations longer than the request. `resolve` (see `timeline.resolve`) copes with all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from otel_llm.timeline.gaps import GapSummary
from otel_llm.timeline.marks import Mark, Outcome, Part, Phase, Side, Source

NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Stamp(NamedTuple):
    """An instant on the wall timeline, integer nanoseconds since the Unix epoch."""

    at_ns: int
    source: Source = Source.OBSERVED


class EngineClock(Enum):
    """Which clock an engine's stamps were read from; both in seconds."""

    MONOTONIC_S = "monotonic_s"
    EPOCH_S = "epoch_s"


class EngineStamps(NamedTuple):
    """Milestones of one sequence just as an engine keeps them: seconds, 0.0 or None if never.

    `preempted` holds when the sequence was taken off and when it ran again, None if it did not.
    `handed_over_ns` and `last_seen_ns` are monotonic nanoseconds of this process around the
    sequence's life; stamps that do not lie between them were read from another clock.
    """

    clock: EngineClock = EngineClock.MONOTONIC_S
    queued: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    handed_over_ns: int | None = None
    last_seen_ns: int | None = None
    output_tokens: int | None = None
    preemptions: int | None = None
    preempted: tuple[tuple[float, float | None], ...] = ()
    finish_reason: str | None = None


class Sequence(NamedTuple):
    """One generated sequence on the request's timeline."""

    marks: Mapping[Mark, Stamp] = NOTHING
    reported: Mapping[Phase, int] = NOTHING
    output_tokens: int | None = None
    preemptions: int | None = None
    finish_reason: str | None = None
    parts: Mapping[Part, int] = NOTHING


class Tokens(NamedTuple):
    """Token counts of a request; None where nobody said.

    `input` includes cached tokens and `output` includes reasoning tokens.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    reasoning: int | None = None


class Ending(NamedTuple):
    """What was seen of the end.

    `failure` is the verdict of the code that saw an exception or an error event, if any;
    `status` an HTTP status; `end_record` the protocol's own record of the end (finish reason,
    `done`, `response.completed`); `terminator` a mere end marker such as `[DONE]`.
    """

    failure: Outcome | None = None
    error_type: str | None = None
    status: int | None = None
    peer_gone: bool = False
    abandoned: bool = False
    end_record: bool = False
    terminator: bool = False


NO_TOKENS = Tokens()
NO_ENDING = Ending()


class Evidence(NamedTuple):
    """Everything known of one request on one side.

    A request that `generates` no tokens (embeddings, scores) is prefilled until its last result.

    `reported` holds durations an engine states itself, nanoseconds. With `reported_total_ns` the
    queue is what the other reported durations leave of it, an upper bound. `expected_sequences`
    is how many were asked for; fewer in `sequences` means that some were not seen. An engine that
    was called and has told nothing yet is `engine_silent`. `first_chunk_ns` is the instant at
    which a client read its first chunk, whatever was in it.
    """

    side: Side
    streaming: bool = False
    generates: bool = True
    marks: Mapping[Mark, Stamp] = NOTHING
    reported: Mapping[Phase, int] = NOTHING
    reported_total_ns: int | None = None
    sequences: tuple[Sequence, ...] = ()
    expected_sequences: int = 1
    engine_silent: bool = False
    tokens: Tokens = NO_TOKENS
    parts: Mapping[Part, int] = NOTHING
    gaps: GapSummary | None = None
    first_chunk_ns: int | None = None
    role: str | None = None
    attempts: int = 1
    consumer_stall_ns: int | None = None
    buffered_chunks: int | None = None
    finish_reasons: tuple[str, ...] = ()
    ending: Ending = NO_ENDING
