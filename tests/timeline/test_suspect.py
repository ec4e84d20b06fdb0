"""Timelines that would mislead: what the design asks for, not what the code gives.

Each test is expected to fail and says why. When one passes, the code was mended: drop its mark
and move it to the file of its subject.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_llm.clock import Anchor
from otel_llm.timeline import (
    Ending,
    EngineStamps,
    GapSummary,
    Mark,
    Outcome,
    OutputTimes,
    Part,
    Phase,
    RequestRecorder,
    Sequence,
    Side,
    Tokens,
    resolve,
)
from otel_llm.timeline.align import aligned, from_events, milestones
from otel_llm.timeline.gaps import summarised
from otel_llm.timeline.outcome import Verdict, judge
from tests.timeline.builders import (
    BASE_NS,
    MONOTONIC_NS,
    FakeClock,
    at,
    client,
    durations,
    engine,
    laid,
    marks,
    ns,
    phases,
    sequence,
    server,
    us,
)

BOUNDS = marks(received=0, finished=1000)
ANCHOR = Anchor(BASE_NS, MONOTONIC_NS)
CUT = Ending(failure=Outcome.ERROR, error_type="x")


def suspect(reason: str) -> pytest.MarkDecorator:
    """A test that fails for *reason*."""
    return pytest.mark.xfail(reason=reason, strict=True)


class Call:
    """A call into an engine of which only stamps are known."""

    def __init__(self, stamps: EngineStamps) -> None:
        self._stamps = stamps

    def stamps(self) -> list[EngineStamps]:
        return [self._stamps]

    def tokens(self) -> Tokens:
        return Tokens()


def folded(gaps_ms: list[float]) -> GapSummary:
    """The summary of a stream with these gaps, folded."""
    lane, at_ns = OutputTimes(), MONOTONIC_NS
    lane.stamps.append(at_ns)
    for gap in gaps_ms:
        at_ns += ns(gap)
        lane.stamps.append(at_ns)
    lane.fold()
    found = summarised([lane])
    assert found is not None
    return found


class TestWindows:
    """TTFT, TPOT and E2E that are not what they are called."""

    @suspect("resolve._tpot asks how many sequences were seen, not how many were asked for")
    def test_tpot_of_a_client_with_two_answers(self) -> None:
        """Two answers of 101 tokens in one second each took 10 ms per token, not 5."""
        given = marks(received=0, first_token=100, last_token=1100, finished=1200)
        found = resolve(client(given, output=202, expected_sequences=2))
        assert found.tpot_us in {None, us(10)}

    @suspect("resolve._sequence_tpot reads the sequence's own stamps, believed or not")
    def test_tpot_of_a_last_token_that_is_not_believed(self) -> None:
        """A last token an hour after the request's end gives no time per token."""
        one = sequence(10, queued=10, scheduled=20, first_token=100, last_token=3_600_000)
        found = resolve(server(BOUNDS, sequences=(one,)))
        assert frozenset({Mark.LAST_TOKEN}) == found.left_out
        assert found.tpot_us is None

    @suspect("window._bounds takes the earliest mark for RECEIVED")
    def test_ttft_without_arrival(self) -> None:
        """TTFT and E2E start at RECEIVED; without it they are unknown, not zero."""
        found = resolve(server(marks(first_token=100)))
        assert found.ttft_us is None
        assert found.e2e_us is None


class TestMergedMarks:
    """Engine stamps that push out better knowledge."""

    PARTIAL = sequence(queued=10, scheduled=20, first_token=500, last_token=600)
    OWN = BOUNDS | marks(first_token=300, last_token=900)

    @suspect("resolve.merged_marks replaces our FIRST_TOKEN by that of the sequences seen")
    def test_first_token_when_one_of_two_sequences_was_seen(self) -> None:
        """The first token is the earliest: an output at 300 ms came before 500 ms."""
        found = resolve(server(self.OWN, sequences=(self.PARTIAL,), expected_sequences=2))
        assert us(300) == found.ttft_us

    @suspect("resolve.merged_marks replaces our LAST_TOKEN by that of the sequences seen")
    def test_last_token_when_one_of_two_sequences_was_seen(self) -> None:
        """The last token is the latest: 300 ms of decode are not delivery."""
        found = resolve(server(self.OWN, sequences=(self.PARTIAL,), expected_sequences=2))
        assert us(100) == found.duration_us(Phase.DELIVERY)

    @suspect("align._fits has no upper bound without last_seen_ns, and the adapter gives none")
    def test_an_engine_whose_clock_is_ahead(self) -> None:
        """Stamps of a host that is up longer are durations; our own marks say where."""
        recorder = RequestRecorder(Side.SERVER, clock=FakeClock())
        recorder.streaming = True
        recorder.lane().stamps.extend(MONOTONIC_NS + ns(time) for time in (400, 900))
        recorder.mark(Mark.FINISHED, MONOTONIC_NS + ns(1000))
        far = MONOTONIC_NS / 1e9 + 86_400
        stamps = EngineStamps(
            queued=far + 0.01,
            scheduled=far + 0.1,
            first_token=far + 0.4,
            last_token=far + 0.9,
            handed_over_ns=MONOTONIC_NS,
        )
        recorder.calls.append(Call(stamps))
        found = resolve(recorder.evidence())
        assert us(400) == found.ttft_us
        assert us(90) == found.duration_us(Phase.QUEUE)

    @suspect("resolve._reported takes each phase from the first sequence listed")
    def test_queue_of_two_sequences_on_a_foreign_clock(self) -> None:
        """The queue is that of the sequence scheduled first, here 100 ms, not 400."""
        late = EngineStamps(queued=12.0, scheduled=12.4, handed_over_ns=MONOTONIC_NS)
        soon = EngineStamps(queued=12.0, scheduled=12.1, handed_over_ns=MONOTONIC_NS)
        both = tuple(aligned(each, ANCHOR) for each in (late, soon))
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert us(100) == found.duration_us(Phase.QUEUE)

    @suspect("resolve._reported mixes durations of one sequence with marks of another")
    def test_queue_of_a_placed_and_a_foreign_sequence(self) -> None:
        """Marks of the first sequence say how long its queue was; the other's is another."""
        placed = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        foreign = Sequence(reported=durations(queue=30))
        found = resolve(server(BOUNDS, sequences=(placed, foreign), expected_sequences=2))
        assert us(100) == found.duration_us(Phase.QUEUE)


class TestLayout:
    """Phases of the wrong length, place or source."""

    @suspect("layout measures a stated decode (from FIRST_TOKEN) against the rest after delivery")
    def test_stated_decode_of_a_streaming_server(self) -> None:
        """Evidence that agrees to the microsecond is no estimate and has no raw value."""
        given = marks(
            received=0, first_token=400, first_delivered=430, last_token=900, finished=1000
        )
        found = resolve(server(given, reported=durations(prefill=300, decode=500)))
        decode = next(each for each in found.phases if each.phase is Phase.DECODE)
        assert us(470) == decode.duration_us
        assert decode.reported_us is None

    @suspect("layout.usable_durations calls all of the total queue that is not stated otherwise")
    def test_residual_queue_without_stated_work(self) -> None:
        """An embedding states total and load; the time it was computed is not queue."""
        found = resolve(
            client(BOUNDS, streaming=False, reported=durations(load=20), reported_total_ns=ns(900))
        )
        assert found.duration_us(Phase.QUEUE) is None

    @suspect("layout keeps the residual it computed as if an engine had reported it")
    def test_raw_value_of_a_residual_queue(self) -> None:
        """A residual that was cut is not something an engine said."""
        given = marks(received=0, first_token=260, last_token=900, finished=1000)
        stated = durations(load=20, prefill=200, decode=600)
        found = resolve(client(given, reported=stated, reported_total_ns=ns(5000)))
        queue = next(each for each in found.phases if each.phase is Phase.QUEUE)
        assert queue.reported_us is None

    @suspect("layout._lay pushes stated phases against the end of a segment of several")
    def test_place_of_a_stated_decode_without_last_token(self) -> None:
        """Decode begins at the first token, which we saw; it does not float to the end."""
        given = BOUNDS | marks(first_token=300)
        found = resolve(server(given, streaming=False, reported=durations(decode=200)))
        assert phases("decode 300+200 reported") == laid(found)

    @suspect("layout._lay pushes stated phases against the end of a segment of several")
    def test_place_of_a_stated_queue_without_schedule(self) -> None:
        """Queue begins at QUEUED, which we saw."""
        given = BOUNDS | marks(queued=10, first_token=600)
        found = resolve(server(given, reported=durations(queue=100)))
        assert "queue 10+100 reported" in laid(found)

    @suspect("resolve._phases drops a client's wait as soon as any duration is stated")
    def test_wait_of_a_client_that_knows_only_decode(self) -> None:
        """A decode stated at the end says nothing of the wait, which stays one phase."""
        given = marks(received=0, first_token=300, last_token=900, finished=1000)
        found = resolve(client(given, reported=durations(decode=590)))
        assert us(300) == found.duration_us(Phase.FIRST_TOKEN)

    @suspect("resolve._parts bounds a part only when its phase is known")
    def test_part_of_an_unknown_phase(self) -> None:
        """A part is never longer than the whole request."""
        found = resolve(server(BOUNDS, parts={Part.QUEUE_KV_TRANSFER_US: us(100_000)}))
        assert found.parts.get(Part.QUEUE_KV_TRANSFER_US, 0) <= us(1000)


class TestEvents:
    """Milestones that never were, by another way."""

    @pytest.mark.parametrize("upto", [1, 2])
    @suspect("align.from_events gives `finished` as last token, past the check in milestones")
    def test_a_finish_without_a_token(self, upto: int) -> None:
        """A request aborted in the queue or in prefill has no last token."""
        events = [("queued", 1.0), ("scheduled", 1.5)][:upto]
        stamps, _ = from_events([*events, ("finished", 5.0)])
        assert Mark.LAST_TOKEN not in milestones(stamps)

    @suspect("align.from_events forgets the first of two preemptions without a schedule between")
    def test_two_preemptions_in_a_row(self) -> None:
        """The request was out since the first of them."""
        events = [("scheduled", 1.0), ("preempted", 2.0), ("preempted", 2.5), ("scheduled", 3.0)]
        _, parts = from_events(events)
        assert us(1000) == parts[Part.PREFILL_PREEMPTED_US]


class TestSketch:
    """Folded gaps that are further from the truth than promised."""

    @suspect("gaps.sketched gives the mean of a bucket 2 % wide: up to 2 % off, not 1 %")
    def test_percentile_at_the_edge_of_its_bucket(self) -> None:
        """The 99th percentile of a folded stream is within 1 % of the exact one."""
        low, high = 398.345, 406.180
        found = folded([high if n % 100 >= 98 else low for n in range(3000)])
        assert us(high) == pytest.approx(found.p99_us, rel=0.01)

    @suspect("gaps.sketched decides by a bucket's mean whether all its gaps are stalls")
    def test_stalls_near_the_limit(self) -> None:
        """Gaps of 199.5 ms are no stalls although they share a bucket with 201.5 ms."""
        found = folded([10, 10, 199.5, 10, 201.5] * 1000)
        assert found.stalls == pytest.approx(1000, rel=0.01)


class TestOutcome:
    """Ends that are called by the wrong name."""

    @suspect("outcome._outcome looks at the status before it looks at the peer")
    def test_an_error_reply_to_a_peer_that_left(self) -> None:
        """A server that answers 400 to a peer that left, as vLLM does, was not asking too much."""
        ending = Ending(peer_gone=True, status=400)
        found = judge(ending, streaming=False, has_token=False, finish_reasons=())
        assert Outcome.CANCELLED is found.outcome

    @suspect("outcome._outcome looks at failures before it looks at the peer")
    def test_an_exception_because_the_peer_left(self) -> None:
        """`send` raises OSError when the peer is gone; that is how it left, not an error."""
        ending = Ending(peer_gone=True, failure=Outcome.ERROR, error_type="BrokenPipeError")
        found = judge(ending, streaming=True, has_token=True, finish_reasons=())
        assert Outcome.CANCELLED is found.outcome

    @pytest.mark.parametrize("status", [400, 429, 503])
    @suspect("outcome._outcome does not ask for tokens when it reads a status")
    def test_a_refusal_after_tokens(self, status: int) -> None:
        """Rejected means before any token; a server that generated and then refuses failed."""
        found = judge(Ending(status=status), streaming=False, has_token=True, finish_reasons=())
        assert Outcome.ERROR is found.outcome

    @suspect("outcome._outcome prefers abandoned to a terminator that was seen")
    def test_an_empty_stream_that_was_closed(self) -> None:
        """A terminator and nothing else is an empty stream, however the reader went on."""
        ending = Ending(terminator=True, abandoned=True)
        found = judge(ending, streaming=True, has_token=False, finish_reasons=())
        assert Verdict(Outcome.ERROR, "empty_stream", complete=False) == found

    @suspect("outcome.judge takes one finish reason for the end of every answer")
    def test_a_stream_cut_after_one_of_two_answers(self) -> None:
        """A stream that ends before the second answer did is incomplete."""
        given = client(
            BOUNDS | marks(first_token=100, last_token=900),
            expected_sequences=2,
            finish_reasons=("stop",),
            ending=Ending(),
        )
        assert resolve(given).incomplete


class TestEndedIn:
    """Phases that were not the open one."""

    SEEN = BOUNDS | engine(queued=10, scheduled=110, first_token=400, last_token=700)

    @suspect("resolve._ended_in takes the finish reason `abort` for a finished answer")
    def test_an_engine_abort_in_the_middle(self) -> None:
        """An engine that aborts while it decodes does so in decode, not in delivery."""
        found = resolve(server(self.SEEN, ending=Ending(), finish_reasons=("abort",)))
        assert Phase.DECODE is found.ended_in

    @suspect("resolve._ended_in knows no first_token phase on servers")
    def test_a_peer_that_left_before_the_first_delivery(self) -> None:
        """Between a token and its delivery the open phase is first_token."""
        given = {mark: each for mark, each in self.SEEN.items() if mark is not Mark.LAST_TOKEN}
        found = resolve(server(given, ending=Ending(peer_gone=True)))
        assert Phase.FIRST_TOKEN is found.ended_in

    @suspect("resolve._ended_in says preprocess of every side that is not a client")
    def test_a_proxy_that_knows_nothing_of_the_engine(self) -> None:
        """A proxy, like a client, cannot know that its upstream was preprocessing."""
        evidence = server(BOUNDS, streaming=False, ending=CUT)
        found = resolve(replace(evidence, side=Side.PROXY))
        assert Phase.PREPROCESS is not found.ended_in


class TestRecorder:
    """Evidence that changes after it was taken."""

    @suspect("recorder.evidence hands out its own dicts of durations and parts")
    def test_evidence_is_a_snapshot(self) -> None:
        """What was taken does not change with what comes later."""
        recorder = RequestRecorder(Side.SERVER, clock=FakeClock())
        taken = recorder.evidence()
        recorder.reported(Phase.QUEUE, ns(5))
        recorder.part(Part.QUEUE_GRAMMAR_US, us(5))
        recorder.mark(Mark.QUEUED)
        assert {Mark.RECEIVED: at(0)} == taken.marks
        assert not taken.reported
        assert not taken.parts
