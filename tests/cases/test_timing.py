"""Field cases of kind TIM: first token and phase timing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_llm.clock import Anchor, is_instant
from otel_llm.timeline import (
    EngineClock,
    EngineStamps,
    Mark,
    Outcome,
    Part,
    Phase,
    RequestRecorder,
    Side,
    Timeline,
    Tokens,
    resolve,
)
from otel_llm.timeline.align import aligned, from_events

DATA = Path(__file__).parent / "data"
EPOCH_NS = 1_764_460_800_000_000_000
SECOND_NS = 1_000_000_000


class FakeClock:
    """Two clocks that move only when told; the wall can also step."""

    def __init__(self, wall_ns: int, monotonic_ns: int) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float, *, wall_step: float = 0.0) -> None:
        self._monotonic_ns += nanoseconds(seconds)
        self._wall_ns += nanoseconds(seconds + wall_step)


class Call:
    """A call into an engine of which only stamps are known."""

    def __init__(self, stamps: EngineStamps) -> None:
        self._stamps = stamps

    def stamps(self) -> list[EngineStamps]:
        return [self._stamps]

    def tokens(self) -> Tokens:
        return Tokens(output=self._stamps.output_tokens)


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND_NS)


def us(seconds: float) -> int:
    """Seconds in microseconds, the unit of timelines."""
    return round(seconds * 1e6)


def lengths(found: Timeline) -> dict[str, float]:
    """Phases and their lengths in seconds."""
    return {each.phase.value: each.duration_us / 1e6 for each in found.phases}


def near(seconds: float) -> Any:
    """Equal within the millisecond that the cases allow."""
    return pytest.approx(seconds, abs=0.001)


class TestMonotonicTakenForWallClock:
    """D-TIM-01: a monotonic reading becomes an instant only through an anchor."""

    CASE = load("D-TIM-01.json")
    ANCHOR = Anchor(int(CASE["anchor"]["epoch_ns"]), nanoseconds(CASE["anchor"]["monotonic_s"]))

    def test_is_placed_by_its_anchor(self) -> None:
        """Start and end lie where they were, and are 2.30 s apart."""
        start = self.ANCHOR.instant(nanoseconds(self.CASE["start"]))
        end = self.ANCHOR.instant(nanoseconds(self.CASE["end"]))
        expected = (1_764_460_797_700_000_000, 1_764_460_800_000_000_000)
        assert expected == (start, end)
        assert nanoseconds(2.30) == end - start

    @pytest.mark.parametrize("reading", ["start", "end"])
    def test_is_no_instant_itself(self, reading: str) -> None:
        """A start before the year 2000 is refused, in seconds and in nanoseconds."""
        assert not is_instant(nanoseconds(self.CASE[reading]))
        assert not is_instant(int(self.CASE[reading]))
        assert is_instant(self.ANCHOR.instant(nanoseconds(self.CASE[reading])))

    @pytest.mark.parametrize("step", [-3600.0, 0.0, 3600.0])
    def test_is_as_long_whatever_the_wall_clock_does(self, step: float) -> None:
        """A step of the wall clock during the request does not change its duration."""
        clock = FakeClock(EPOCH_NS, nanoseconds(self.CASE["start"]))
        recorder = RequestRecorder(Side.ENGINE, clock=clock)
        clock.advance(self.CASE["end"] - self.CASE["start"], wall_step=step)
        recorder.mark(Mark.FINISHED)
        assert us(2.30) == resolve(recorder.evidence()).e2e_us


class TestMilestoneThatNeverWas:
    """D-TIM-02: 0.0 and null mean never, and nothing is subtracted with them."""

    SEEN_S = 2.2
    """How long the request was watched: past every stamp of the three cases."""

    def _found(self, name: str) -> Timeline:
        case = load(name)
        clock = EngineClock(case["clock"])
        epoch = clock is EngineClock.EPOCH_S
        arrival = nanoseconds(81_233.9 if epoch else case["arrival"])
        wall = nanoseconds(case["arrival"]) if epoch else EPOCH_NS
        recorder = RequestRecorder(Side.ENGINE, anchor=Anchor(wall, arrival))
        recorder.streaming = True
        names = ("queued", "scheduled", "first_token", "last_token", "finished", "output_tokens")
        stamps = EngineStamps(
            clock=clock,
            handed_over_ns=arrival,
            last_seen_ns=arrival + nanoseconds(self.SEEN_S),
            finish_reason=case["finish_reason"],
            **{name: case[name] for name in names},
        )
        recorder.calls.append(Call(stamps))
        recorder.mark(Mark.FINISHED, arrival + nanoseconds(self.SEEN_S))
        return resolve(recorder.evidence())

    def test_aborted_in_the_queue(self) -> None:
        """Only preprocess has both its ends; the request waited until it was aborted."""
        found = self._found("D-TIM-02-a.json")
        assert _phases(preprocess=0.2) == lengths(found)
        assert found.ttft_us is found.tpot_us is None
        assert Phase.QUEUE is found.ended_in

    def test_aborted_is_exported_as_such(self) -> None:
        """The abort is an outcome of its own, with the reason the engine gave."""
        found = self._found("D-TIM-02-a.json")
        expected = (Outcome.ERROR, "abort", ("abort",))
        assert expected == (found.outcome, found.error_type, found.finish_reasons)

    def test_finished_is_null(self) -> None:
        """The last token ends the decode; what never finished does not count."""
        found = self._found("D-TIM-02-b.json")
        assert _phases(preprocess=0.01, queue=0.09, prefill=0.4, decode=0.4) == lengths(found)
        assert us(0.5) == found.ttft_us

    def test_first_token_is_zero(self) -> None:
        """Tokens exist, but not when the first came: no prefill, no decode, no rates."""
        found = self._found("D-TIM-02-c.json")
        assert _phases(preprocess=0.01, queue=0.09, delivery=0.2) == lengths(found)
        assert found.ttft_us is found.tpot_us is None
        assert Tokens(output=12) == found.tokens

    @pytest.mark.parametrize("name", ["D-TIM-02-a.json", "D-TIM-02-b.json", "D-TIM-02-c.json"])
    def test_lasts_as_long_as_it_was_watched(self, name: str) -> None:
        """No time is negative, and none is near the host's uptime."""
        found = self._found(name)
        assert us(self.SEEN_S) == found.e2e_us
        assert all(0 <= each.duration_us <= us(self.SEEN_S) for each in found.phases)


class TestRoleOnlyChunk:
    """D-TIM-03: the opening chunk with a role and no content is not the first token."""

    def _found(self) -> Timeline:
        case = load("D-TIM-03.timeline.json")
        clock = FakeClock(EPOCH_NS, SECOND_NS)
        recorder = RequestRecorder(Side.CLIENT, clock=clock)
        recorder.streaming = True
        lane = recorder.lane()
        for read in case["reads"]:
            choice = _choice(read["text"])
            if choice.get("delta", {}).get("content"):
                lane.stamps.append(SECOND_NS + read["at_ms"] * 1_000_000)
            if choice.get("finish_reason"):
                recorder.finish_reasons = (choice["finish_reason"],)
        recorder.usage(input=4, output=2)
        recorder.mark(Mark.FINISHED, SECOND_NS + case["closed_ms"] * 1_000_000)
        return resolve(recorder.evidence())

    def test_first_token_is_the_first_text(self) -> None:
        """Time to first token is 480 ms; the 30 ms of the role chunk are something else."""
        assert us(0.480) == self._found().ttft_us

    def test_time_per_token_is_that_between_texts(self) -> None:
        """From the first text to the second are 40 ms; finish and usage chunks are no tokens."""
        assert us(0.040) == self._found().tpot_us

    def test_phases(self) -> None:
        """The wait, the decode and what came after the last token are the whole request."""
        found = self._found()
        assert _phases(first_token=0.480, decode=0.040, delivery=0.012) == lengths(found)
        assert us(0) == found.unaccounted_us


class TestPreemption:
    """D-TIM-04: the first schedule ends the queue; preempted time is told apart."""

    def _found(self, name: str) -> Timeline:
        case = load(name)
        anchor = Anchor(EPOCH_NS, 0)
        stamps, parts = from_events(case["events"])
        recorder = RequestRecorder(Side.ENGINE, anchor=anchor)
        recorder.streaming = True
        recorder.calls.append(Call(stamps))
        recorder.usage(output=case["output_tokens"])
        recorder.ending(end_record=True)
        for part, value in parts.items():
            recorder.part(part, value)
        recorder.mark(Mark.FINISHED, nanoseconds(dict(case["events"])["finished"]))
        return resolve(recorder.evidence())

    def test_after_the_first_token(self) -> None:
        """It lies inside decode, of which it is a part."""
        found = self._found("D-TIM-04-a.json")
        assert _phases(preprocess=0.01, queue=0.49, prefill=0.40, decode=3.10, delivery=0) == (
            lengths(found)
        )
        assert {Part.DECODE_PREEMPTED_US: us(1.80)} == found.parts
        assert us(0.90) == found.ttft_us

    def test_before_the_first_token(self) -> None:
        """It lies inside prefill, which is one interval from the first schedule."""
        found = self._found("D-TIM-04-b.json")
        assert _phases(preprocess=0.01, queue=0.49, prefill=1.90, decode=0.70, delivery=0) == (
            lengths(found)
        )
        assert {Part.PREFILL_PREEMPTED_US: us(1.20)} == found.parts
        assert us(2.40) == found.ttft_us

    @pytest.mark.parametrize("name", ["D-TIM-04-a.json", "D-TIM-04-b.json"])
    def test_is_counted(self, name: str) -> None:
        """One preemption is one."""
        expected = 1
        assert expected == self._found(name).preemptions

    @pytest.mark.parametrize("name", ["D-TIM-04-a.json", "D-TIM-04-b.json"])
    def test_phases_add_up_from_queued_to_finished(self, name: str) -> None:
        """Queue, prefill and decode are the time from queued to finished, and none is negative."""
        times = dict(load(name)["events"])
        found = lengths(self._found(name))
        assert near(times["finished"] - times["queued"]) == sum(
            found[name] for name in ("queue", "prefill", "decode")
        )
        assert min(found.values()) >= 0

    @pytest.mark.parametrize(
        ("name", "queue", "prefill", "decode"),
        [("D-TIM-04-a.json", 0.49, 0.40, 3.10), ("D-TIM-04-b.json", 0.49, 1.90, 0.70)],
    )
    def test_on_another_hosts_clock(
        self, name: str, queue: float, prefill: float, decode: float
    ) -> None:
        """Stamps that another host read give the same lengths, and no instants."""
        stamps, _ = from_events(load(name)["events"])
        elsewhere = stamps._replace(handed_over_ns=nanoseconds(4000), last_seen_ns=None)
        found = aligned(elsewhere, Anchor(EPOCH_NS, nanoseconds(4000)))
        assert not found.marks
        assert _phases(queue=queue, prefill=prefill, decode=decode) == {
            phase.value: length / SECOND_NS for phase, length in found.reported.items()
        }


def _choice(text: str) -> dict[str, Any]:
    """The only choice of an event, or nothing of the terminator."""
    payload = text.strip().removeprefix("data: ")
    return {} if payload == "[DONE]" else json.loads(payload)["choices"][0]


def _phases(**seconds: float) -> dict[str, Any]:
    """Expected phases, equal within a millisecond."""
    return {name: near(length) for name, length in seconds.items()}
