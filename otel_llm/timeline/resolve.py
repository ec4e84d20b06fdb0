"""From evidence to a frozen timeline: total functions, no clock, no I/O, no OpenTelemetry.

Whatever goes in, what comes out is ordered, tiles the request, adds up as integers
(`sum(phases) + unaccounted_us == e2e_us`) and holds nothing negative, infinite or unknown-as-zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from otel_llm.clock import is_instant
from otel_llm.timeline.counts import count, preemptions, token_counts, tokens_per_output
from otel_llm.timeline.evidence import Evidence, Sequence, Stamp, Tokens
from otel_llm.timeline.gaps import GapSummary, to_us
from otel_llm.timeline.layout import LONGEST_US, PhaseTime, lay_out, usable_durations
from otel_llm.timeline.marks import Mark, Outcome, Part, Phase, Side, Source
from otel_llm.timeline.outcome import Verdict, generated, judge
from otel_llm.timeline.window import TOLERANCE_US, At, Window, window_of

BUFFERED_LIMIT = 0.1
"""Share of chunks with unknown arrival above which a client's decode is only a bound."""


class Timeline(NamedTuple):
    """Where the time of one request went. Times are whole microseconds; None is unknown.

    `start_us` and `end_us` are since the Unix epoch. `ttft_us` runs from RECEIVED (SENT on a
    client that retried) to FIRST_TOKEN; `tpot_us` is the mean time per output token after the
    first, over sequences of at least two tokens; `first_chunk_us` is until a client's first chunk,
    which need not hold a token. `left_out` names marks that could not be believed.
    """

    side: Side
    start_us: int | None
    end_us: int | None
    phases: tuple[PhaseTime, ...]
    e2e_us: int | None
    unaccounted_us: int | None
    ttft_us: int | None
    tpot_us: int | None
    gaps: GapSummary | None
    tokens_per_output: float | None
    tokens: Tokens
    parts: Mapping[Part, int]
    preemptions: int | None
    consumer_stall_us: int | None
    first_chunk_us: int | None
    outcome: Outcome
    error_type: str | None
    incomplete: bool
    ended_in: Phase | None
    finish_reasons: tuple[str, ...]
    left_out: frozenset[Mark] = frozenset()

    def duration_us(self, phase: Phase) -> int | None:
        """How long *phase* took, or None when it is unknown or did not happen."""
        return next((each.duration_us for each in self.phases if each.phase is phase), None)


def resolve(evidence: Evidence) -> Timeline:
    """The timeline of *evidence*. Never raises, whatever the evidence holds."""
    marks = merged_marks(evidence)
    if not evidence.generates and Mark.LAST_TOKEN in marks:
        marks[Mark.FIRST_TOKEN] = marks[Mark.LAST_TOKEN]  # the last of its results
    window = window_of(marks)
    tokens = token_counts(evidence)
    reasons = _finish_reasons(evidence)
    has_token = _has_token(window, tokens)
    verdict = judge(
        evidence.ending,
        streaming=evidence.streaming,
        has_token=has_token,
        finish_reasons=reasons,
        expected=evidence.expected_sequences,
        client=evidence.side is Side.CLIENT,
    )
    buffered = _mostly_buffered(evidence)
    phases = _phases(evidence, window, verdict, buffered=buffered) if window else ()
    e2e = _e2e(window)
    tpot = None
    if evidence.generates and window is not None and not buffered:
        tpot = _tpot(evidence, window, tokens, phases)
    return Timeline(
        side=evidence.side,
        start_us=window.start.us if window else None,
        end_us=window.end.us if window else None,
        phases=phases,
        e2e_us=e2e,
        unaccounted_us=None if e2e is None else e2e - sum(map(_duration_us, phases)),
        ttft_us=_ttft(window) if evidence.generates else None,
        tpot_us=tpot,
        gaps=None if buffered else evidence.gaps,
        tokens_per_output=tokens_per_output(evidence, tokens),
        tokens=tokens,
        parts=_parts(evidence, phases, e2e),
        preemptions=preemptions(evidence.sequences),
        consumer_stall_us=_bounded_us(evidence.consumer_stall_ns, e2e),
        first_chunk_us=_first_chunk(evidence, window),
        outcome=verdict.outcome,
        error_type=verdict.error_type,
        incomplete=evidence.streaming and not verdict.complete,
        ended_in=_ended_in(evidence, window, verdict, reasons),
        finish_reasons=reasons,
        left_out=window.left_out if window else frozenset(),
    )


_duration_us = attrgetter("duration_us")


def merged_marks(evidence: Evidence) -> dict[Mark, Stamp]:
    """One set of marks: the first scheduled sequence's wait, the earliest and the latest token.

    Where only some of the expected sequences were seen, our own marks count beside theirs, and
    what comes from theirs is an estimate of the request's.
    """
    marks = dict(evidence.marks)
    if not evidence.sequences:
        return marks
    if len(evidence.sequences) == evidence.expected_sequences == 1:
        return marks | dict(evidence.sequences[0].marks)
    ran = [each for each in evidence.sequences if Mark.SCHEDULED in each.marks]
    seen = sum(1 for each in evidence.sequences if each.marks)
    partly = 0 < seen < evidence.expected_sequences
    queue = _stamps(evidence.sequences, Mark.QUEUED)
    found = {Mark.QUEUED: min(queue, key=_instant, default=None)}
    if ran:
        first = min(ran, key=lambda each: each.marks[Mark.SCHEDULED].at_ns)
        found[Mark.SCHEDULED] = first.marks[Mark.SCHEDULED]
        found[Mark.QUEUED] = first.marks.get(Mark.QUEUED)
    for mark, pick in ((Mark.FIRST_TOKEN, min), (Mark.LAST_TOKEN, max)):
        stamps = _stamps(evidence.sequences, mark)
        if partly and stamps and mark in marks:
            stamps.append(marks[mark])
        found[mark] = pick(stamps, key=_instant, default=None)
    for mark, stamp in found.items():
        if stamp is not None:
            estimate = partly and stamp is not marks.get(mark) and mark is not Mark.LAST_TOKEN
            marks[mark] = Stamp(stamp.at_ns, Source.ESTIMATED) if estimate else stamp
    return marks


def _instant(stamp: Stamp) -> int:
    return stamp.at_ns


def _stamps(sequences: Iterable[Sequence], mark: Mark) -> list[Stamp]:
    return [each.marks[mark] for each in sequences if mark in each.marks]


def _phases(
    evidence: Evidence, window: Window, verdict: Verdict, *, buffered: bool
) -> tuple[PhaseTime, ...]:
    durations = usable_durations(_reported(evidence), evidence.reported_total_ns)
    knows_wait = not (_WAITS.isdisjoint(durations) and _WAIT_ENDS.isdisjoint(window.marks))
    client = evidence.side is Side.CLIENT
    left = evidence.ending.peer_gone and not generated(evidence.ending, _finish_reasons(evidence))
    phases = lay_out(
        window,
        durations,
        delivery=verdict.complete or not (evidence.streaming or left),
        first_token=None if client else _first_token_end(evidence, window),
        waits_unseen=client and evidence.streaming and not knows_wait,
        remote=evidence.side in _REMOTE,
        retried=(count(evidence.attempts) or 0) > 1,
    )
    if not evidence.generates:
        return tuple(each for each in phases if each.phase not in _TOKEN_PHASES)
    if buffered:
        return tuple(_as_estimate(each) if each.phase is Phase.DECODE else each for each in phases)
    return phases


_TOKEN_PHASES = frozenset({Phase.FIRST_TOKEN, Phase.DECODE})
_WAITS = frozenset({Phase.PREPROCESS, Phase.LOAD, Phase.QUEUE, Phase.PREFILL})
_WAIT_ENDS = frozenset({Mark.QUEUED, Mark.SCHEDULED})
_REMOTE = frozenset({Side.CLIENT, Side.PROXY})


def _as_estimate(phase: PhaseTime) -> PhaseTime:
    return PhaseTime(
        phase.phase, phase.start_us, phase.duration_us, Source.ESTIMATED, phase.reported_us
    )


def _reported(evidence: Evidence) -> Mapping[Phase, int]:
    """Stated durations: the request's own, else those of the sequence that waited least.

    Sequences that could be placed have marks and leave no room for those of others; and one
    sequence's decode is not that of several.
    """
    stated = [each.reported for each in evidence.sequences if each.reported]
    if not stated or any(each.marks for each in evidence.sequences):
        return evidence.reported
    waited = [each for each in stated if Phase.QUEUE in each] or stated
    first: Mapping[Phase, int] = min(waited, key=_stated_queue)
    found = dict(first)
    if len(stated) > 1:
        found.pop(Phase.DECODE, None)
    return found | dict(evidence.reported)


def _stated_queue(stated: Mapping[Phase, int]) -> int:
    return stated.get(Phase.QUEUE, 0)


def _first_token_end(evidence: Evidence, window: Window) -> At | None:
    """The end of a streaming server's first-token phase: delivered, or the last token if sooner."""
    first = window.marks.get(Mark.FIRST_TOKEN)
    delivered = window.first_delivered
    if not evidence.streaming or first is None or delivered is None:
        return None
    last = window.marks.get(Mark.LAST_TOKEN)
    end = last if last is not None and last.us < delivered.us else delivered
    return end if end.us > first.us else None


def _e2e(window: Window | None) -> int | None:
    if window is None or not (window.arrival_known and window.end_known):
        return None
    return window.end.us - window.start.us


def _ttft(window: Window | None) -> int | None:
    if window is None or Mark.FIRST_TOKEN not in window.marks:
        return None
    if Mark.SENT not in window.marks and not window.arrival_known:
        return None
    sent = window.marks.get(Mark.SENT, window.start)
    return window.marks[Mark.FIRST_TOKEN].us - sent.us


def _first_chunk(evidence: Evidence, window: Window | None) -> int | None:
    if window is None or evidence.first_chunk_ns is None or not is_instant(evidence.first_chunk_ns):
        return None
    waited = to_us(evidence.first_chunk_ns) - window.marks.get(Mark.SENT, window.start).us
    return waited if window.arrival_known and 0 <= waited <= LONGEST_US else None


def _tpot(
    evidence: Evidence, window: Window, tokens: Tokens, phases: tuple[PhaseTime, ...]
) -> int | None:
    known = [t for s in evidence.sequences if (t := _sequence_tpot(s, window)) is not None]
    if known:
        return round(sum(known) / len(known))
    if tokens.output is None or tokens.output < 2 or evidence.expected_sequences > 1:
        return None
    decode = _decode_window(window, phases)
    return None if decode is None else round(decode / (tokens.output - 1))


def _decode_window(window: Window, phases: tuple[PhaseTime, ...]) -> int | None:
    """FIRST_TOKEN to LAST_TOKEN, or the decode an engine stated when there are no such marks."""
    if Mark.FIRST_TOKEN in window.marks and Mark.LAST_TOKEN in window.marks:
        return window.marks[Mark.LAST_TOKEN].us - window.marks[Mark.FIRST_TOKEN].us
    stated = [each for each in phases if each.phase is Phase.DECODE]
    return stated[0].duration_us if stated else None


def _sequence_tpot(sequence: Sequence, window: Window) -> float | None:
    """Time per token after the first of one sequence, if its stamps lie inside the request."""
    first, last = sequence.marks.get(Mark.FIRST_TOKEN), sequence.marks.get(Mark.LAST_TOKEN)
    tokens = count(sequence.output_tokens)
    if first is None or last is None or tokens is None or tokens < 2:
        return None
    first_us, last_us = to_us(first.at_ns), to_us(last.at_ns)
    low, high = window.start.us - TOLERANCE_US, window.end.us + TOLERANCE_US
    if not low <= first_us <= last_us <= high:
        return None
    return (last_us - first_us) / (tokens - 1)


def _mostly_buffered(evidence: Evidence) -> bool:
    """True for a client that knows too few arrivals to say anything of gaps and decode."""
    buffered = count(evidence.buffered_chunks) or 0
    if evidence.side is not Side.CLIENT or not buffered:
        return False
    known = evidence.gaps.outputs if evidence.gaps else 0
    return buffered > BUFFERED_LIMIT * (known + buffered)


def _finish_reasons(evidence: Evidence) -> tuple[str, ...]:
    if evidence.finish_reasons:
        return evidence.finish_reasons
    return tuple([each.finish_reason for each in evidence.sequences if each.finish_reason])


def _has_token(window: Window | None, tokens: Tokens) -> bool:
    return bool(tokens.output) or (window is not None and Mark.FIRST_TOKEN in window.marks)


def _parts(
    evidence: Evidence, phases: tuple[PhaseTime, ...], e2e_us: int | None
) -> dict[Part, int]:
    """Parts, cut to their phase. A prefill node's KV transfer is counted by the decode node."""
    given = dict(evidence.parts)
    for sequence in evidence.sequences:  # the worst of several, which may overlap
        for part, value in sequence.parts.items():
            given[part] = max(count(given.get(part)) or 0, value)
    if not given:
        return {}
    lengths = {each.phase: each.duration_us for each in phases}
    found = {}
    for part, value in given.items():
        number = count(value)
        if number is None or (part is Part.QUEUE_KV_TRANSFER_US and evidence.role == "prefill"):
            continue
        room = lengths.get(Phase(part.value.partition(".")[0]), e2e_us)
        is_time = part.value.endswith("_us") and room is not None
        found[part] = min(number, room or 0) if is_time else number
    return found


def _bounded_us(ns: object, most_us: int | None) -> int | None:
    if type(ns) is not int or ns < 0 or most_us is None:
        return None
    return min(to_us(ns), most_us)


_OPEN_AFTER = (
    (Mark.FIRST_TOKEN, Phase.DECODE),
    (Mark.SCHEDULED, Phase.PREFILL),
    (Mark.QUEUED, Phase.QUEUE),
)


def _ended_in(
    evidence: Evidence, window: Window | None, verdict: Verdict, reasons: tuple[str, ...]
) -> Phase | None:
    """The phase that was open when a request did not end well."""
    if verdict.outcome is Outcome.OK or window is None:
        return None
    if generated(evidence.ending, reasons) and Mark.LAST_TOKEN in window.marks:
        return Phase.DELIVERY
    remote = evidence.side in _REMOTE
    for mark, phase in _OPEN_AFTER:
        if mark in window.marks and (evidence.generates or phase not in _TOKEN_PHASES):
            if phase is Phase.QUEUE and evidence.engine_silent:
                return None  # it may be queued or computing; nobody has said
            serves = evidence.streaming and evidence.side is Side.SERVER
            waits = serves and window.first_delivered is None
            return Phase.FIRST_TOKEN if phase is Phase.DECODE and waits else phase
    if remote:
        return Phase.FIRST_TOKEN if evidence.streaming else None
    return Phase.PREPROCESS
