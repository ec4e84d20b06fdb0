"""One call of vLLM's engine: its outputs watched, and what they leave behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any, Protocol

from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard
from otel_llm.timeline import EngineStamps, Outcome, Tokens
from otel_llm.timeline.gaps import FOLD_AT, OutputTimes


class Taker(Protocol):
    """Who wants the statistics of the sequences that reach the engine."""

    def take(self, name: object, stats: Any, asked: Any, sent: Any) -> None:
        """One more sequence of the request with this external id, and its live statistics.

        *asked* is vLLM's record of what was asked for, of all sequences together; *sent* is the
        message about this one, which has not gone to the engine yet.
        """


CURRENT: ContextVar[Taker | None] = ContextVar("otel_llm_vllm", default=None)
PREEMPTED = "_otel_llm_preempted"
"""Where `state` leaves the preemptions of a sequence, on vLLM's own statistics of it."""
_REFUSALS = frozenset({"VLLMClientError", "GracefulHTTPError", "VLLMValidationError", "ValueError"})
"""Exceptions, by class name, with which vLLM refuses a request; its server answers 4xx or 503."""


class VllmCall:
    """One call of the engine: what its outputs leave behind, read when needed.

    `states` are the live statistics of its sequences, in order, where `state` has seen them.
    `RequestOutput.metrics` is one of the same objects. In deltas it belongs to the first sequence
    in the output, since the engine merges later ones into an output not yet taken; in a final
    output of several sequences it is that of whichever finished last.
    """

    __slots__ = (
        "_counted",
        "_metrics",
        "_reasons",
        "_settled",
        "at_end",
        "delta",
        "drafted",
        "expected",
        "failure",
        "generates",
        "handed_over_ns",
        "last",
        "name",
        "states",
        "texts",
    )

    def __init__(
        self, expected: int, handed_over_ns: int, *, delta: bool, generates: bool = True
    ) -> None:
        self.expected = expected
        self.delta = delta
        self.generates = generates
        self.handed_over_ns = handed_over_ns
        self.last: Any = None
        self.name: object = None
        self.drafted: tuple[int, int] | None = None
        self.failure: str | None = None
        self.states: list[Any] = []
        self.texts: dict[int, list[str]] | None = None
        self.at_end: Callable[[VllmCall], None] | None = None
        self._metrics: dict[int, Any] = {}
        self._reasons: dict[int, str] = {}
        self._counted: dict[int, int] = {}
        self._settled: tuple[list[EngineStamps], Tokens] | None = None

    def take(self, name: object, stats: Any, asked: Any = None, sent: Any = None) -> None:  # noqa: ARG002
        """The live statistics of the next sequence of request *name*, None if they are off."""
        if self._settled is None and name == self.name and len(self.states) < self.expected:
            self.states.append(stats)

    def keep(self, output: Any) -> None:
        """Keep what is needed of an output: metrics, finish reasons, and token counts."""
        self.last = output
        if not self.generates:
            self.failure = _failure(output)
            return
        if output.metrics is not None and output.outputs:
            self._metrics[output.outputs[0].index] = output.metrics
        for each in output.outputs:
            before = self._counted.get(each.index, 0) if self.delta else 0
            self._counted[each.index] = before + len(each.token_ids)
            if each.finish_reason is not None:
                self._reasons[each.index] = each.finish_reason
            if self.texts is not None:
                pieces = self.texts.setdefault(each.index, [])
                if not self.delta:
                    pieces.clear()
                pieces.append(each.text)

    def settle(self) -> None:
        """The call is over: keep what it says, and let go of its outputs."""
        self._settled = self.stamps(), self.tokens()
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            at_end(self)
        self.last = None
        self.states = []
        self._metrics.clear()

    def drafts(self) -> tuple[int, int] | None:
        """Tokens drafted by speculative decoding and those accepted; None if not told of all."""
        outputs = self.last.outputs if self.last is not None and self.generates else ()
        told: list[Any] = [getattr(each, "spec_decode_metrics", None) for each in outputs]
        if not told or None in told or len(told) < self.expected:
            return None
        accepted = sum(size * count for m in told for size, count in enumerate(m.histogram))
        return sum(m.num_draft_tokens for m in told), accepted

    def stamps(self) -> list[EngineStamps]:
        """The stamps of each sequence seen, as vLLM has them now."""
        if self._settled is not None:
            return self._settled[0]
        if self.last is None or not self.generates:
            return [self._stamps(stats, None, None) for stats in self.states if stats is not None]
        if not self._counted:
            if self.delta:
                reasons = [each.finish_reason for each in self.last.outputs]
                return [self._stamps(self.last.metrics, None, reasons[0] if reasons else None)]
            self.keep(self.last)
        return [
            self._stamps(self._metric(index), count, self._reasons.get(index))
            for index, count in sorted(self._counted.items())
        ]

    def _metric(self, index: int) -> Any:
        """The statistics of one sequence."""
        seen = self.states[index] if index < len(self.states) else None
        return self._metrics.get(index) if seen is None else seen

    def messages(self) -> list[dict[str, Any]]:
        """The answers kept so far, in the conventions' form."""
        return [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "".join(pieces)}],
                "finish_reason": self._reasons.get(index),
            }
            for index, pieces in sorted((self.texts or {}).items())
        ]

    def tokens(self) -> Tokens:
        """Prompt and cached tokens of the call; output tokens are known per sequence."""
        if self._settled is not None:
            return self._settled[1]
        if self.last is None:
            return Tokens()
        prompt = self.last.prompt_token_ids
        return Tokens(
            input=len(prompt) if prompt is not None else None,
            cached=getattr(self.last, "num_cached_tokens", None),
        )

    def _stamps(self, metrics: Any, counted: int | None, finish_reason: str | None) -> EngineStamps:
        generated = getattr(metrics, "num_generation_tokens", None)
        preempted = tuple(getattr(metrics, PREEMPTED, ()))
        return EngineStamps(
            queued=getattr(metrics, "queued_ts", None),
            scheduled=getattr(metrics, "scheduled_ts", None),
            first_token=getattr(metrics, "first_token_ts", None),
            last_token=getattr(metrics, "last_token_ts", None),
            handed_over_ns=self.handed_over_ns,
            output_tokens=(generated if counted is None else counted) if self.generates else None,
            # An older vLLM does not count them; what was seen of them can be counted.
            preemptions=getattr(metrics, "num_preemptions", len(preempted) or None),
            preempted=preempted,
            finish_reason=finish_reason,
        )


def _failure(output: Any) -> str | None:
    """Why a pooling output is none, in a word; vLLM gives an empty one then, and no exception."""
    error = getattr(output, "error", None)
    if error is None:
        return None
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code.isidentifier() else type(error).__name__


async def watched(
    inner: AsyncGenerator[Any, None], live: LiveRequest, call: VllmCall
) -> AsyncGenerator[Any, None]:
    """Pass outputs through: one clock read and one append each."""
    lane = live.recorder.lane()
    stamps, append, clock = lane.stamps, lane.stamps.append, live.recorder.clock.monotonic_ns
    CURRENT.set(call)
    try:
        async for output in inner:
            append(clock())
            call.last = output
            if len(stamps) >= FOLD_AT:
                lane.fold()
            if getattr(output, "metrics", None) is None:
                with guard("vllm.keep"):
                    call.keep(output)
                    if call.failure is not None:
                        live.recorder.fail(Outcome.ERROR, call.failure)
            yield output
    except BaseException as error:
        failed(live, error)
        raise
    finally:
        await _close(inner, call)


async def watched_several(
    inner: AsyncGenerator[Any, None], live: LiveRequest, call: VllmCall
) -> AsyncGenerator[Any, None]:
    """Pass outputs of several sequences through, and of one whose answer is to be written."""
    lanes: defaultdict[int, OutputTimes] = defaultdict(live.recorder.lane)
    clock = live.recorder.clock.monotonic_ns
    CURRENT.set(call)
    try:
        async for output in inner:
            now = clock()
            with guard("vllm.keep"):
                for each in output.outputs:
                    lanes[each.index].add(now)
                call.keep(output)
                if output.finished and call.texts is not None:
                    live.answer(call, call.messages())
            yield output
    except BaseException as error:
        failed(live, error)
        raise
    finally:
        await _close(inner, call)


async def _close(inner: Any, call: VllmCall) -> None:
    """Close vLLM's generator as our reader closed ours, whoever else has wrapped it."""
    if CURRENT.get() is call:
        CURRENT.set(None)
    with guard("vllm.settle"):
        call.settle()
    if hasattr(inner, "aclose"):
        await inner.aclose()


def failed(live: LiveRequest, error: BaseException) -> None:
    """Note how the engine's call ended."""
    if not live.finished:
        with guard("vllm.failed"):
            live.fail(error, refused=refused(error))


def refused(error: BaseException) -> bool:
    """Whether vLLM refuses the request with *error*, which is no failure of its own."""
    return not _REFUSALS.isdisjoint(kind.__name__ for kind in type(error).__mro__)
