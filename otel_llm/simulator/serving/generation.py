"""One request in the engine: its sequences, their words as they come, and what telemetry is told.

Telemetry is told at the moment something happens and not by whoever sends the reply: a slow reader
changes none of these times, and for a client that leaves everything is told that had happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from otel_llm import semconv
from otel_llm.simulator.driver import Driver
from otel_llm.simulator.engine import EngineRequest, Output
from otel_llm.simulator.serving.http import PeerGone
from otel_llm.simulator.serving.tokens import Writer
from otel_llm.simulator.serving.truth import ServingTruth
from otel_llm.simulator.truth import RequestTruth
from otel_llm.timeline import Mark, Part, Phase
from otel_llm.tracing import TracedRequest


@dataclass(slots=True)
class Piece:
    """What one sequence got: words, one for each token, and why it ended if it did.

    The last word of a sequence that stopped by itself is empty: its token is the end.
    """

    index: int
    words: list[str]
    finished: str | None = None

    @property
    def text(self) -> str:
        """The words in one."""
        return "".join(self.words)


class EngineFailedError(RuntimeError):
    """The engine has broken down."""


class Generation:
    """The sequences of one request; iterate over it for what they get.

    With *merges* what one sequence got while nobody was reading comes in one piece. Iterating
    raises `PeerGone` once the client has left and `EngineFailedError` if the engine broke down.
    """

    def __init__(
        self, driver: Driver, truth: ServingTruth, traced: TracedRequest, *, merges: bool
    ) -> None:
        self.truth = truth
        self.sequences: list[_Sequence] = []
        self.input_tokens = 0
        """Of all prompts; several sequences share one."""
        self._driver = driver
        self._traced = traced
        self._merges = merges
        self._pieces: deque[Piece] = deque()
        self._news = asyncio.Event()
        self._failure: Exception | None = None
        self._begun = False

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Hand all sequences to the engine; if it refuses one (and raises), none stays there."""
        self._tell_state(semconv.REPLICA_WHEN_QUEUED)
        truths = self._driver.engine.truths
        for index, request in enumerate(requests):
            sequence = _Sequence(self, index, request)
            try:
                self._driver.submit(request, sequence)
            except Exception:
                self.truth.engine.append(truths[request.id])
                self.abort()
                raise
            sequence.truth = truths[request.id]
            self.sequences.append(sequence)
            self.truth.engine.append(sequence.truth)
        self._traced.mark(Mark.QUEUED, self.truth.mark("queued_ns"))

    async def ready(self) -> bool:
        """Wait until there is a piece; False when the last one was taken."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if not self.open:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def take(self) -> Piece:
        """The next piece; `ready` must have been true."""
        return self._pieces.popleft()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while await self.ready():
            yield self.take()

    async def wait(self) -> None:
        """Read everything, for a reply in one piece."""
        async for _ in self:
            pass

    @property
    def open(self) -> bool:
        """Whether any sequence has not ended."""
        return any(each.finished is None for each in self.sequences)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far, of all sequences."""
        return sum(each.tokens for each in self.sequences)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache gave the luckiest sequence."""
        return max((each.cached_tokens for each in self.truth.engine), default=0)

    def leave(self) -> None:
        """The client has left: give everything up at once."""
        self.fail(PeerGone())
        self.abort()

    def abort(self) -> None:
        """Give up every sequence that has not ended."""
        for each in self.sequences:
            self._driver.abort(each.request.id)

    def fail(self, error: Exception) -> None:
        """Nothing more will come, for that reason."""
        if self._failure is None:
            self._failure = error
        self._news.set()

    def scheduled(self, at_ns: int) -> None:
        """A sequence has begun to be computed; the first one counts."""
        if not self._begun:
            self._begun = True
            self._traced.mark(Mark.SCHEDULED, at_ns)
            self.truth.load_ns = max(each.load_ns for each in self.truth.engine)
            if self.truth.load_ns:
                self._traced.reported(Phase.LOAD, self.truth.load_ns / 1e9)

    def got(self, piece: Piece, at_ns: int) -> None:
        """A sequence has got words."""
        if self.output_tokens == len(piece.words):
            self._traced.mark(Mark.FIRST_TOKEN, at_ns)
        self._traced.output(len(piece.words), at_ns)
        if piece.finished is not None and not self.open:
            self._tell_end(at_ns)
        if self._merges and (waiting := self._waiting(piece.index)) is not None:
            waiting.words += piece.words
            waiting.finished = piece.finished
        else:
            self._pieces.append(piece)
        self._news.set()

    def _waiting(self, index: int) -> Piece | None:
        return next((each for each in self._pieces if each.index == index), None)

    def tell_parts(self) -> None:
        """Tell how long the sequences were out of the batch, and in how many steps they began."""
        truths, told = self.truth.engine, self._traced
        told.part(Part.PREFILL_CHUNKS, max(each.prefill_chunks for each in truths))
        away = [_preempted_ns(each) for each in truths]
        prefill, decode = (max(both[place] for both in away) for place in (0, 1))
        if prefill:
            told.part(Part.PREFILL_PREEMPTED_US, prefill // 1000)
        if decode:
            told.part(Part.DECODE_PREEMPTED_US, decode // 1000)
        told.set({semconv.PREEMPTIONS: sum(len(each.preemptions) for each in truths)})

    def _tell_state(self, names: semconv.ReplicaNames) -> None:
        """Tell what else the engine has to do, as of its latest step."""
        stats = self._driver.engine.stats
        percent = round(100 * stats.kv_usage)
        self._traced.set(
            {
                names.running: stats.running,
                names.waiting: stats.waiting,
                names.kv_cache_percent: percent,
            }
        )

    def _tell_end(self, at_ns: int) -> None:
        self._traced.mark(Mark.LAST_TOKEN, at_ns)
        self.tell_parts()
        self._tell_state(semconv.REPLICA_WHEN_FINISHED)
        self._traced.finish_reason(*(each.finished or "" for each in self.sequences))
        self._traced.usage(output_tokens=self.output_tokens)
        self._traced.usage(cached_tokens=self.cached_tokens)


class _Sequence:
    """One sequence: where the driver puts what the engine made of it."""

    def __init__(self, generation: Generation, index: int, request: EngineRequest) -> None:
        self.request = request
        self.index = index
        self.truth: RequestTruth
        self.tokens = 0
        self.texts: list[str] = []
        self.finished: str | None = None
        self._generation = generation
        self._writer = Writer(request.id)

    @property
    def text(self) -> str:
        """All that it has said."""
        return "".join(self.texts)

    def scheduled(self, at_ns: int) -> None:
        """It has begun to be computed."""
        self._generation.scheduled(at_ns)

    def output(self, output: Output, at_ns: int) -> None:
        """It has got tokens."""
        words = self._writer.words(output.tokens)
        if output.finished == "stop":
            words[-1] = ""
        self.tokens += output.tokens
        self.texts += words
        self.finished = output.finished
        self._generation.got(Piece(self.index, words, output.finished), at_ns)

    def failed(self, error: Exception) -> None:
        """The engine has broken down."""
        failure = EngineFailedError("the engine has broken down")
        failure.__cause__ = error
        self._generation.fail(failure)


def _preempted_ns(truth: RequestTruth) -> tuple[int, int]:
    """How long it was out of the batch before its first token, and after it."""
    first_ns = truth.first_token_ns or 0
    before = sum(until - since for since, until in truth.preemptions if since < first_ns)
    after = sum(until - since for since, until in truth.preemptions if since >= first_ns)
    return before, after
