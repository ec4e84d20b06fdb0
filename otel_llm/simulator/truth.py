"""What happened to every request in the engine: kept apart from anything telemetry sees.

Instants are nanoseconds of the one monotonic clock whose readings the engine is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that delayed a request, and when. Causes of different kinds may overlap.

    Until the first step, these cover the wait without a hole: `waited_for_step` (one was running),
    `waited_for_slots` (`max_num_seqs` were), `waited_for_kv_cache` (too few free blocks),
    `waited_for_budget` (others used up the step's tokens), `behind_long_prompt` (one prompt used
    half of them or more), `model_load`.
    Later: `behind_long_prompt` and `model_load` again, `preempted` (out of the batch),
    `recomputation` (from there to the next token), `cold_cache` (prefill of what a flush lost).
    At any time, under the name their window has: `slow_step`, `noisy_neighbour` and others.
    Refused: `queue_full` or `prompt_too_long`, of no length.
    """

    kind: str
    from_ns: int
    until_ns: int
    detail: str = ""
    by: str = ""
    """The request that was in the way, if it was one."""

    @property
    def duration_ns(self) -> int:
        """How long it lasted."""
        return self.until_ns - self.from_ns


@dataclass(slots=True)
class RequestTruth:
    """Every instant of one request. None is an instant that never came."""

    request_id: str
    prompt_tokens: int
    queued_ns: int
    """The engine took the request, or refused it."""
    scheduled_ns: int | None = None
    """The first step with this request in it began."""
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    """The latest token so far."""
    finished_ns: int | None = None
    """The last token, the abort or the refusal."""
    cached_tokens: int = 0
    """Prompt tokens the prefix cache gave when first scheduled."""
    output_ns: list[tuple[int, int]] = field(default_factory=list)
    """The end of each step that gave tokens, and how many."""
    prefill_chunks: int = 0
    """Steps that worked on the prompt up to the first token."""
    preemptions: list[tuple[int, int]] = field(default_factory=list)
    """From leaving the batch until being scheduled again, or the abort."""
    load_ns: int = 0
    """Part of the wait in which a model was loading."""
    causes: list[Cause] = field(default_factory=list)
    """In order of their beginning; complete once the request has ended."""
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `rejected`; None while it lives."""

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(tokens for _, tokens in self.output_ns)

    def blame(self, kind: str, from_ns: int, until_ns: int, detail: str = "") -> None:
        """Write down what delayed this request alone."""
        self.causes.append(Cause(kind, from_ns, until_ns, detail))


class Log:
    """Causes that hold for many requests, written down once and cut out for each of them."""

    def __init__(self) -> None:
        self._causes: list[Cause] = []

    def __len__(self) -> int:
        return len(self._causes)

    def add(self, cause: Cause) -> None:
        """Write down a cause that began no earlier than the last; the same one going on grows."""
        last = self._causes[-1] if self._causes else None
        if last and cause.from_ns <= last.until_ns and _what(last) == _what(cause):
            until_ns = max(last.until_ns, cause.until_ns)
            self._causes[-1] = replace(last, until_ns=until_ns)
        elif cause.duration_ns > 0:
            self._causes.append(cause)

    def between(self, from_ns: int, until_ns: int) -> list[Cause]:
        """The causes of that time, cut to it."""
        first = bisect_right(self._causes, from_ns, key=_until)
        found = []
        for cause in self._causes[first:]:
            begin, end = max(from_ns, cause.from_ns), min(until_ns, cause.until_ns)
            if begin >= end:
                break
            found.append(replace(cause, from_ns=begin, until_ns=end))
        return found

    def forget(self, before_ns: int) -> None:
        """Drop what was over by then."""
        del self._causes[: bisect_right(self._causes, before_ns, key=_until)]


class Hold(NamedTuple):
    """Why requests wait for their first step; names as in `Cause`."""

    kind: str = "waited_for_step"
    detail: str = ""
    by: str = ""


class Delays:
    """What delays everybody: who waits, who runs, and both."""

    def __init__(self) -> None:
        self._waiting, self._running = Log(), Log()
        self._steps: dict[str, Log] = {}
        self._hold, self._hold_ns = Hold(), 0

    def hold(self, now_ns: int, hold: Hold) -> None:
        """From now on requests wait because of this."""
        self._waiting.add(self._held(now_ns))
        self._hold, self._hold_ns = hold, now_ns

    def _held(self, now_ns: int) -> Cause:
        return Cause(self._hold.kind, self._hold_ns, now_ns, self._hold.detail, self._hold.by)

    def step(self, troubles: Iterable[Hold], from_ns: int, until_ns: int) -> None:
        """A step took longer than it should."""
        for kind, detail, by in troubles:
            log = self._steps.setdefault(kind, Log())
            log.add(Cause(kind, from_ns, until_ns, detail, by))

    def behind(self, hold: Hold, from_ns: int, until_ns: int) -> None:
        """Those who run were delayed by this."""
        self._running.add(Cause(hold.kind, from_ns, until_ns, hold.detail, hold.by))

    def waited(self, truth: RequestTruth, now_ns: int) -> None:
        """The wait of that request is over: write down why it waited."""
        self._waiting.add(self._held(now_ns))
        causes = self._waiting.between(truth.queued_ns, now_ns)
        truth.causes += causes
        truth.load_ns = sum(each.duration_ns for each in causes if each.kind == "model_load")

    def ended(self, truth: RequestTruth, now_ns: int) -> None:
        """The request is over: write down what else delayed it, and put all of it in order."""
        for log in self._steps.values():
            truth.causes += log.between(truth.queued_ns, now_ns)
        if truth.scheduled_ns is not None:
            while_running = self._running.between(truth.scheduled_ns, now_ns)
            truth.causes += (each for each in while_running if each.by != truth.request_id)
        truth.causes.sort(key=lambda cause: (cause.from_ns, cause.until_ns, cause.kind))

    def forget(self, before_ns: int) -> None:
        """Keep only what can still matter to requests queued after that instant."""
        for log in (self._waiting, self._running, *self._steps.values()):
            log.forget(before_ns)

    @property
    def size(self) -> int:
        """How many causes are kept."""
        return sum(len(log) for log in (self._waiting, self._running, *self._steps.values()))


def _what(cause: Cause) -> tuple[str, str, str]:
    return cause.kind, cause.detail, cause.by


def _until(cause: Cause) -> int:
    return cause.until_ns
