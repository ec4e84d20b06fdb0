"""How a request ended, judged from what was seen of its end. Pure."""

from __future__ import annotations

from typing import NamedTuple

from otel_llm.timeline.evidence import Ending
from otel_llm.timeline.marks import Outcome

EMPTY_STREAM = "empty_stream"
INCOMPLETE_STREAM = "incomplete_stream"
PEER_GONE = "peer_gone"
CANCELLED = "cancelled"
UNKNOWN = "_OTHER"
ENGINE_FAILURES = frozenset({"abort", "error"})
"""Finish reasons that are failures dressed as an answer."""


class Verdict(NamedTuple):
    """`error_type` is absent exactly when the outcome is ok or abandoned."""

    outcome: Outcome
    error_type: str | None
    complete: bool


def generated(ending: Ending, finish_reasons: tuple[str, ...]) -> bool:
    """Whether the engine came to the end of its work, whoever was still there to read it."""
    return ending.end_record or (
        bool(finish_reasons) and ENGINE_FAILURES.isdisjoint(finish_reasons)
    )


def judge(
    ending: Ending,
    *,
    streaming: bool,
    has_token: bool,
    finish_reasons: tuple[str, ...],
    expected: int = 1,
    client: bool = True,
) -> Verdict:
    """The outcome, its `error.type`, and whether the reply came to its end.

    *expected* is how many sequences were asked for: with fewer finish reasons some never ended.
    A *client*'s exception for a 503 is that refusal; on a server a failure that was seen is the
    reason for it.
    """
    broken = None
    if not ENGINE_FAILURES.isdisjoint(finish_reasons):
        broken = next(reason for reason in finish_reasons if reason in ENGINE_FAILURES)
    ended = ending.end_record or len(finish_reasons) >= max(1, expected)
    complete = (ended or (ending.terminator and has_token)) and broken is None
    complete = complete and not ending.peer_gone and ending.failure is None
    if not client and ending.failure is Outcome.ERROR and ending.status == 503:
        ending = ending._replace(status=None)
    outcome, error_type = _outcome(ending, streaming, has_token, complete, broken)
    return Verdict(outcome, error_type, complete)


def _outcome(
    ending: Ending, streaming: bool, has_token: bool, complete: bool, broken: str | None
) -> tuple[Outcome, str | None]:
    if ending.peer_gone:
        return Outcome.CANCELLED, PEER_GONE
    if ending.failure is Outcome.CANCELLED:
        return Outcome.CANCELLED, ending.error_type or CANCELLED
    if ending.status is not None and ending.status >= 400:
        refused = (ending.status < 500 or ending.status == 503) and not has_token
        outcome = Outcome.REJECTED if refused else Outcome.ERROR
        return outcome, ending.error_type or str(ending.status)
    if ending.failure is not None:
        return _failed(ending, has_token)
    if broken is not None:
        return Outcome.ERROR, ending.error_type or broken
    if complete:
        return Outcome.OK, None
    return _incomplete(ending, streaming, has_token)


def _incomplete(ending: Ending, streaming: bool, has_token: bool) -> tuple[Outcome, str | None]:
    """A reply without its end: empty, left by its reader, or cut; a plain one needs no end."""
    if streaming and ending.terminator and not has_token:
        return Outcome.ERROR, EMPTY_STREAM
    if ending.abandoned:
        return Outcome.ABANDONED, None
    return (Outcome.ERROR, INCOMPLETE_STREAM) if streaming else (Outcome.OK, None)


def _failed(ending: Ending, has_token: bool) -> tuple[Outcome, str | None]:
    """A failure that was seen; a refusal after the first token is an error like any other."""
    if ending.failure is Outcome.ABANDONED:
        return Outcome.ABANDONED, None
    refused = ending.failure is Outcome.REJECTED and not has_token
    return Outcome.REJECTED if refused else Outcome.ERROR, ending.error_type or UNKNOWN
