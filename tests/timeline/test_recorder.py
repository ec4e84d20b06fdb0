"""The recorder: what is told it, when, and what comes out as evidence."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from otel_llm.clock import Anchor
from otel_llm.timeline import (
    Ending,
    EngineStamps,
    Mark,
    Outcome,
    Part,
    Phase,
    RequestRecorder,
    Side,
    Source,
    Tokens,
    resolve,
)
from otel_llm.timeline.chunks import ChunkTimes
from tests.timeline.builders import (
    BASE_NS,
    MONOTONIC_NS,
    FakeClock,
    at,
    durations,
    laid,
    ns,
    phases,
    us,
)


class Call:
    """A call into an engine, with what it tells."""

    def __init__(self, *stamps: EngineStamps, **tokens: int) -> None:
        self.told = list(stamps)
        self._tokens = Tokens(**tokens)

    def stamps(self) -> Iterable[EngineStamps]:
        return iter(self.told)

    def tokens(self) -> Tokens:
        return self._tokens


def here(milliseconds: float) -> float:
    """What the engine reads from the same monotonic clock, in seconds."""
    return MONOTONIC_NS / 1e9 + milliseconds / 1e3


@pytest.fixture
def clock() -> FakeClock:
    """Both clocks, at the start of the request."""
    return FakeClock()


@pytest.fixture
def recorder(clock: FakeClock) -> RequestRecorder:
    """A server's recorder, just made."""
    return RequestRecorder(Side.SERVER, clock=clock)


class TestMarks:
    """Instants as they happen."""

    def test_received_is_when_it_was_made(self, recorder: RequestRecorder) -> None:
        """The arrival needs no call."""
        assert {Mark.RECEIVED: at(0)} == recorder.evidence().marks
        assert recorder.has(Mark.RECEIVED)

    def test_received_is_the_anchor_that_was_given(self, clock: FakeClock) -> None:
        """A request that arrived before its recorder was made began then."""
        clock.advance(500)
        early = Anchor(BASE_NS, MONOTONIC_NS)
        found = RequestRecorder(Side.SERVER, clock=clock, anchor=early)
        found.mark(Mark.FINISHED)
        assert us(500) == resolve(found.evidence()).e2e_us

    def test_now(self, recorder: RequestRecorder, clock: FakeClock) -> None:
        """Without a time a mark happened now, and we observed it."""
        clock.advance(30)
        recorder.mark(Mark.QUEUED)
        assert at(30) == recorder.evidence().marks[Mark.QUEUED]

    def test_at_a_given_time(self, recorder: RequestRecorder) -> None:
        """A monotonic reading is placed by the recorder's anchor, with its source."""
        recorder.mark(Mark.QUEUED, MONOTONIC_NS + ns(12), Source.REPORTED)
        assert at(12, Source.REPORTED) == recorder.evidence().marks[Mark.QUEUED]

    def test_a_reading_of_zero_is_a_reading(self, recorder: RequestRecorder) -> None:
        """A monotonic clock may stand at zero; that is not the same as now."""
        recorder.mark(Mark.QUEUED, 0)
        assert recorder.anchor.instant(0) == recorder.evidence().marks[Mark.QUEUED].at_ns

    def test_given_again_moves(self, recorder: RequestRecorder, clock: FakeClock) -> None:
        """The latest word counts."""
        recorder.mark(Mark.QUEUED)
        clock.advance(30)
        recorder.mark(Mark.QUEUED)
        assert at(30) == recorder.evidence().marks[Mark.QUEUED]

    def test_has_only_what_was_recorded(self, recorder: RequestRecorder) -> None:
        """Stamps of an engine's call are not marks of ours."""
        recorder.calls.append(Call(EngineStamps(queued=here(10))))
        assert not recorder.has(Mark.QUEUED)
        recorder.mark(Mark.QUEUED)
        assert recorder.has(Mark.QUEUED)

    def test_wall_clock_steps_change_nothing(
        self, recorder: RequestRecorder, clock: FakeClock
    ) -> None:
        """Phases are the same however the wall clock jumps during the request."""
        clock.advance(100)
        recorder.mark(Mark.QUEUED)
        clock.step_wall(-3_600_000)
        clock.advance(100)
        recorder.mark(Mark.SCHEDULED)
        clock.step_wall(7_200_000)
        clock.advance(100)
        recorder.mark(Mark.FINISHED)
        assert phases("preprocess 0+100 observed", "queue 100+100 observed") == laid(
            resolve(recorder.evidence())
        )


class TestOutputs:
    """Marks that follow from the outputs themselves."""

    def _out(self, recorder: RequestRecorder, *times_ms: float) -> None:
        recorder.lane().stamps.extend(MONOTONIC_NS + ns(time) for time in times_ms)

    def test_none_yet(self, recorder: RequestRecorder) -> None:
        """A lane without outputs shows nothing."""
        recorder.streaming = True
        recorder.lane()
        assert not recorder.has_output
        assert {Mark.RECEIVED} == recorder.evidence().marks.keys()
        assert recorder.evidence().gaps is None

    def test_of_a_stream(self, recorder: RequestRecorder) -> None:
        """The first and the last output are the first and the last token."""
        recorder.streaming = True
        self._out(recorder, 40, 50, 60)
        found = recorder.evidence().marks
        assert recorder.has_output
        assert (at(40), at(60)) == (found[Mark.FIRST_TOKEN], found[Mark.LAST_TOKEN])

    def test_of_several_lanes(self, recorder: RequestRecorder) -> None:
        """The earliest and the latest output of any sequence count."""
        recorder.streaming = True
        self._out(recorder, 45, 90)
        self._out(recorder, 40, 60)
        recorder.lane()
        found = recorder.evidence().marks
        assert (at(40), at(90)) == (found[Mark.FIRST_TOKEN], found[Mark.LAST_TOKEN])

    def test_of_a_folded_lane(self, recorder: RequestRecorder) -> None:
        """Folding loses neither the first output nor the last."""
        recorder.streaming = True
        self._out(recorder, 40, 50, 60)
        recorder.lanes[0].fold()
        found = recorder.evidence().marks
        assert (at(40), at(60)) == (found[Mark.FIRST_TOKEN], found[Mark.LAST_TOKEN])

    def test_the_only_output_of_a_reply_in_one_piece(self, recorder: RequestRecorder) -> None:
        """It holds the whole answer: the last token is in it, the first was long before."""
        self._out(recorder, 40)
        found = recorder.evidence().marks
        assert Mark.FIRST_TOKEN not in found
        assert at(40) == found[Mark.LAST_TOKEN]

    def test_the_only_output_of_a_stream(self, recorder: RequestRecorder) -> None:
        """On a stream one output is first and last token."""
        recorder.streaming = True
        self._out(recorder, 40)
        found = recorder.evidence().marks
        assert at(40) == found[Mark.FIRST_TOKEN] == found[Mark.LAST_TOKEN]

    def test_several_outputs_of_a_reply_in_one_piece(self, recorder: RequestRecorder) -> None:
        """An engine that gives outputs inside a server that does not stream shows both ends."""
        self._out(recorder, 40, 60)
        found = recorder.evidence().marks
        assert (at(40), at(60)) == (found[Mark.FIRST_TOKEN], found[Mark.LAST_TOKEN])

    def test_marks_that_were_recorded_stand(self, recorder: RequestRecorder) -> None:
        """What somebody marked is not replaced by what the outputs show."""
        recorder.streaming = True
        recorder.mark(Mark.FIRST_TOKEN, MONOTONIC_NS + ns(35))
        recorder.mark(Mark.LAST_TOKEN, MONOTONIC_NS + ns(65))
        self._out(recorder, 40, 60)
        found = recorder.evidence().marks
        assert (at(35), at(65)) == (found[Mark.FIRST_TOKEN], found[Mark.LAST_TOKEN])

    def test_gaps_are_those_inside_lanes(self, recorder: RequestRecorder) -> None:
        """Two sequences of 10 ms per output have gaps of 10 ms."""
        self._out(recorder, 40, 50, 60)
        self._out(recorder, 45, 55)
        gaps = recorder.evidence().gaps
        assert gaps is not None
        assert (5, us(10)) == (gaps.outputs, gaps.max_us)


class TestCounts:
    """Token counts, from us and from engine calls."""

    def test_later_counts_replace_earlier_ones(self, recorder: RequestRecorder) -> None:
        """A stream's usage grows; None leaves what is known, zero does not."""
        recorder.usage(input=5, output=1, cached=3)
        recorder.usage(output=7, input=None, cached=0)
        assert Tokens(input=5, output=7, cached=0) == recorder.evidence().tokens

    def test_calls_are_summed(self, recorder: RequestRecorder) -> None:
        """Several prompts in one request are one request's tokens."""
        recorder.calls.append(Call(input=3, output=10))
        recorder.calls.append(Call(input=4, output=20))
        assert Tokens(input=7, output=30) == recorder.evidence().tokens

    def test_what_one_call_does_not_know_is_unknown(self, recorder: RequestRecorder) -> None:
        """A sum without one of its parts is none."""
        recorder.calls.append(Call(input=3, output=10))
        recorder.calls.append(Call(input=4))
        assert Tokens(input=7) == recorder.evidence().tokens

    def test_counts_that_were_recorded_stand(self, recorder: RequestRecorder) -> None:
        """What the protocol said is not replaced, not even a zero."""
        recorder.usage(output=0)
        recorder.calls.append(Call(input=3, output=10))
        assert Tokens(input=3, output=0) == recorder.evidence().tokens

    def test_no_call_no_counts(self, recorder: RequestRecorder) -> None:
        """Unknown is absent."""
        assert Tokens() == recorder.evidence().tokens


class TestCalls:
    """Calls into an engine, asked only when the evidence is taken."""

    def test_are_asked_late(self, recorder: RequestRecorder) -> None:
        """Stamps that came after the call was made known count."""
        call = Call()
        recorder.calls.append(call)
        call.told.append(EngineStamps(queued=here(10), scheduled=here(20)))
        recorder.mark(Mark.FINISHED, MONOTONIC_NS + ns(100))
        assert "queue 10+10 reported" in laid(resolve(recorder.evidence()))

    def test_give_one_sequence_per_stamps(self, recorder: RequestRecorder) -> None:
        """Sequences of all calls are sequences of the request."""
        recorder.calls += [Call(EngineStamps(), EngineStamps()), Call(EngineStamps())]
        assert len(recorder.calls) + 1 == len(recorder.evidence().sequences)

    def test_are_placed_by_the_recorders_anchor(self, recorder: RequestRecorder) -> None:
        """Stamps of the same clock become marks of the request's timeline."""
        recorder.calls.append(Call(EngineStamps(queued=here(10))))
        recorder.mark(Mark.FINISHED, MONOTONIC_NS + ns(20))
        (found,) = recorder.evidence().sequences
        assert abs(at(10).at_ns - found.marks[Mark.QUEUED].at_ns) < ns(0.001)

    @pytest.mark.parametrize(
        ("calls", "silent"),
        [
            ([], False),
            ([Call()], True),
            ([Call(EngineStamps())], True),
            ([Call(EngineStamps(queued=here(0)))], False),
            ([Call(EngineStamps()), Call(EngineStamps(queued=here(0)))], False),
        ],
    )
    def test_that_tell_nothing_are_silent(
        self, recorder: RequestRecorder, calls: list[Call], silent: bool
    ) -> None:
        """An engine that was called and gave no stamp is silent; no engine is not."""
        recorder.calls += calls
        assert silent is recorder.evidence().engine_silent

    def test_add_up_what_they_ask_for(self, recorder: RequestRecorder) -> None:
        """Two calls for one and three sequences expect four."""
        recorder.call(Call(), 1)
        recorder.call(Call(), 3)
        expected = 4
        assert expected == recorder.evidence().expected_sequences

    def test_in_turns_were_given_the_same_prompt_again(self, recorder: RequestRecorder) -> None:
        """A call after an output repeats the prompt, and not all of its output is answered."""
        recorder.call(Call(input=3, cached=1, output=10), 1)
        recorder.lane().stamps.append(MONOTONIC_NS)
        recorder.call(Call(input=13, cached=3, output=20), 1)
        assert Tokens() == recorder.evidence().tokens

    def test_in_turns_keep_a_prompt_that_was_recorded(self, recorder: RequestRecorder) -> None:
        """What the protocol said of the prompt stands."""
        recorder.usage(input=3, cached=2)
        recorder.call(Call(input=3, output=10), 1)
        recorder.lane().stamps.append(MONOTONIC_NS)
        recorder.call(Call(input=13, output=20), 1)
        recorder.call(Call(input=23, output=5), 1)
        assert Tokens(input=3, cached=2) == recorder.evidence().tokens

    def test_in_turns_expect_what_the_last_turn_asks_for(self, recorder: RequestRecorder) -> None:
        """Sequences of earlier turns are not answers of the request."""
        expected = 3
        recorder.call(Call(), 2)
        recorder.lane().stamps.append(MONOTONIC_NS)
        recorder.call(Call(), 5)
        recorder.call(Call(), expected)
        assert expected == recorder.evidence().expected_sequences

    def test_in_turns_end_as_the_last_turn_ends(self, recorder: RequestRecorder) -> None:
        """Why the sequences of earlier turns ended is not why the request did."""
        recorder.call(Call(EngineStamps(finish_reason="tool_calls")), 1)
        recorder.lane().stamps.append(MONOTONIC_NS)
        recorder.call(Call(EngineStamps(finish_reason="stop"), EngineStamps()), 2)
        expected = ("stop",)
        assert expected == recorder.evidence().finish_reasons

    def test_side_by_side_have_prompts_of_their_own(self, recorder: RequestRecorder) -> None:
        """Calls made before any output are several prompts, which are summed."""
        recorder.call(Call(input=3, output=10), 1)
        recorder.call(Call(input=4, output=20), 1)
        recorder.lane().stamps.append(MONOTONIC_NS)
        assert Tokens(input=7, output=30) == recorder.evidence().tokens

    def test_of_another_host_give_durations(self, recorder: RequestRecorder) -> None:
        """Stamps later than now were read elsewhere, whether the request has ended or not."""
        far = 86_400_000
        recorder.calls.append(Call(EngineStamps(queued=here(far), scheduled=here(far + 50))))
        for _ in range(2):
            (found,) = recorder.evidence().sequences
            assert not found.marks
            assert us(50) == round(found.reported[Phase.QUEUE] / 1000)
            recorder.mark(Mark.FINISHED, MONOTONIC_NS + ns(20))

    def test_of_another_host_leave_our_own_marks(
        self, recorder: RequestRecorder, clock: FakeClock
    ) -> None:
        """An engine whose clock is a day ahead takes no first token from us."""
        far = 86_400_000
        recorder.streaming = True
        recorder.lane().stamps.extend(MONOTONIC_NS + ns(time) for time in (400, 900))
        stamps = EngineStamps(
            queued=here(far), scheduled=here(far + 90), first_token=here(far + 99)
        )
        recorder.calls.append(Call(stamps))
        recorder.mark(Mark.FINISHED, MONOTONIC_NS + ns(1000))
        found = resolve(recorder.evidence())
        assert us(400) == found.ttft_us
        assert us(90) == found.duration_us(Phase.QUEUE)

    @pytest.mark.parametrize(("expected", "evidence"), [(0, 1), (1, 1), (3, 3)])
    def test_at_least_one_sequence_is_expected(
        self, recorder: RequestRecorder, expected: int, evidence: int
    ) -> None:
        """A recorder that was told nothing expects one."""
        recorder.expected_sequences = expected
        assert evidence == recorder.evidence().expected_sequences


class TestEnding:
    """What is seen of the end."""

    def test_nothing(self, recorder: RequestRecorder) -> None:
        """While nothing was seen nothing is assumed."""
        assert Ending() == recorder.evidence().ending
        assert recorder.status is None

    def test_is_gathered(self, recorder: RequestRecorder) -> None:
        """Each observation adds to the others."""
        recorder.ending(status=200)
        recorder.ending(end_record=True, terminator=True)
        expected = Ending(status=200, end_record=True, terminator=True)
        assert expected == recorder.evidence().ending
        assert expected.status == recorder.status

    def test_the_first_failure_stays(self, recorder: RequestRecorder) -> None:
        """What went wrong first is the cause; the rest follows from it."""
        recorder.fail(Outcome.CANCELLED, "Cancelled")
        recorder.fail(Outcome.ERROR, "RuntimeError")
        expected = Ending(failure=Outcome.CANCELLED, error_type="Cancelled")
        assert expected == recorder.evidence().ending

    def test_a_failure_hides_nothing_else(self, recorder: RequestRecorder) -> None:
        """Status and end records seen after a failure are kept."""
        recorder.fail(Outcome.ERROR, "RuntimeError")
        recorder.ending(status=500, end_record=True, error_type="other")
        expected = Ending(Outcome.ERROR, "RuntimeError", status=500, end_record=True)
        assert expected == recorder.evidence().ending

    def test_a_peer_that_leaves_after_a_failure_explains_nothing(
        self, recorder: RequestRecorder
    ) -> None:
        """The failure came first, so it is the cause."""
        recorder.fail(Outcome.ERROR, "RuntimeError")
        recorder.ending(peer_gone=True)
        assert Ending(Outcome.ERROR, "RuntimeError") == recorder.evidence().ending

    def test_an_exception_because_the_peer_left_is_no_failure(
        self, recorder: RequestRecorder
    ) -> None:
        """The peer left first; that `send` raised is how it was noticed."""
        recorder.ending(peer_gone=True)
        recorder.fail(Outcome.ERROR, "BrokenPipeError")
        assert Ending(peer_gone=True) == recorder.evidence().ending

    @pytest.mark.parametrize("nothing", [{"peer_gone": False}, {"failure": None}])
    def test_saying_that_nothing_happened_hides_no_failure(
        self, recorder: RequestRecorder, nothing: dict[str, object]
    ) -> None:
        """A peer that is still there and a failure that was none say nothing more."""
        recorder.ending(**nothing)
        recorder.fail(Outcome.ERROR, "RuntimeError")
        assert Ending(Outcome.ERROR, "RuntimeError") == recorder.evidence().ending

    def test_an_error_type_without_a_failure_can_be_replaced(
        self, recorder: RequestRecorder
    ) -> None:
        """A name that comes before the failure gives way to the failure's."""
        recorder.ending(error_type="500")
        recorder.fail(Outcome.ERROR, "RuntimeError")
        assert Ending(Outcome.ERROR, "RuntimeError") == recorder.evidence().ending


class TestEvidence:
    """What is handed on."""

    def test_holds_what_was_told(self, recorder: RequestRecorder) -> None:
        """Every field that callers set reaches the evidence."""
        recorder.streaming, recorder.role, recorder.attempts = True, "decode", 2
        recorder.reported_total_ns, recorder.finish_reasons = ns(9), ("stop",)
        recorder.chunks = ChunkTimes(1.0)
        recorder.chunks.got, recorder.chunks.asked = [1.0, 1.108], [1.008, 1.108]
        found = recorder.evidence()
        assert (Side.SERVER, True, "decode", 2, ns(9), ns(8), 0, ("stop",)) == (
            found.side,
            found.streaming,
            found.role,
            found.attempts,
            found.reported_total_ns,
            found.consumer_stall_ns,
            found.buffered_chunks,
            found.finish_reasons,
        )

    def test_of_a_new_recorder_assumes_one_attempt(self, recorder: RequestRecorder) -> None:
        """Nobody retried until somebody says so."""
        expected = 1
        assert expected == recorder.evidence().attempts

    def test_holds_stated_durations_and_parts(self, recorder: RequestRecorder) -> None:
        """A duration or a part given again replaces the earlier one."""
        recorder.reported(Phase.QUEUE, ns(1))
        recorder.reported(Phase.QUEUE, ns(2))
        recorder.part(Part.QUEUE_GRAMMAR_US, us(1))
        recorder.part(Part.QUEUE_GRAMMAR_US, us(2))
        found = recorder.evidence()
        assert durations(queue=2) == found.reported
        assert {Part.QUEUE_GRAMMAR_US: us(2)} == found.parts

    def test_can_be_taken_at_any_moment(self, recorder: RequestRecorder, clock: FakeClock) -> None:
        """Taking it changes nothing of what is taken later."""
        early = resolve(recorder.evidence())
        clock.advance(100)
        recorder.mark(Mark.FINISHED)
        late = resolve(recorder.evidence())
        assert early.e2e_us is None
        assert us(100) == late.e2e_us

    def test_is_a_snapshot(self, recorder: RequestRecorder) -> None:
        """What was taken does not change with what comes later."""
        taken = recorder.evidence()
        recorder.reported(Phase.QUEUE, ns(5))
        recorder.part(Part.QUEUE_GRAMMAR_US, us(5))
        recorder.mark(Mark.QUEUED)
        recorder.usage(output=3)
        assert {Mark.RECEIVED: at(0)} == taken.marks
        assert not taken.reported
        assert not taken.parts
        assert taken.tokens.output is None

    def test_of_a_whole_request(self, recorder: RequestRecorder, clock: FakeClock) -> None:
        """A served stream, from arrival to its end, is a timeline without a gap."""
        recorder.streaming = True
        recorder.calls.append(
            Call(EngineStamps(queued=here(10), scheduled=here(60), first_token=here(160)))
        )
        lane = recorder.lane()
        for pause in (170, 30, 30):
            clock.advance(pause)
            lane.stamps.append(clock.monotonic_ns())
            if not recorder.has(Mark.FIRST_DELIVERED):
                recorder.mark(Mark.FIRST_DELIVERED)
        recorder.ending(end_record=True)
        clock.advance(20)
        recorder.mark(Mark.FINISHED)
        assert phases(
            "preprocess 0+10 derived",
            "queue 10+50 reported",
            "prefill 60+100 reported",
            "first_token 160+10 derived",
            "decode 170+60 observed",
            "delivery 230+20 observed",
        ) == laid(resolve(recorder.evidence()))


def test_tokens_of_calls_in_turns(recorder: RequestRecorder) -> None:
    """Beam search and tool loops generate what is not answered; the sum is not the output."""
    recorder.call(Call(EngineStamps(output_tokens=10)), 1)
    recorder.lane().stamps.append(MONOTONIC_NS)
    recorder.call(Call(EngineStamps(output_tokens=20)), 1)
    assert resolve(recorder.evidence()).tokens.output is None
