"""Timelines that would mislead: what the design asks for, not what the code gives.

Each test is expected to fail and says why. When one passes, the code was mended: drop its mark
and move it to the file of its subject.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_llm.timeline import Ending, Outcome, Phase, RequestRecorder, Sequence, Side, resolve
from tests.timeline.builders import FakeClock, durations, marks, sequence, server, us

BOUNDS = marks(received=0, finished=1000)


def suspect(reason: str) -> pytest.MarkDecorator:
    """A test that fails for *reason*."""
    return pytest.mark.xfail(reason=reason, strict=True)


@suspect("resolve._ended_in waits for a first delivery on sides that deliver nothing")
def test_an_engine_stream_that_its_reader_left() -> None:
    """An in-process engine has no `send`; after its first token it is in decode."""
    given = server(BOUNDS | marks(first_token=100, last_token=900), ending=Ending(abandoned=True))
    assert Phase.DECODE is resolve(replace(given, side=Side.ENGINE)).ended_in


@suspect("layout._after_first_token shortens the stated decode before its raw value is kept")
def test_raw_value_of_a_decode_that_was_cut() -> None:
    """The raw value is what the engine said, 5 s, not that less our first-token phase."""
    given = BOUNDS | marks(first_token=400, first_delivered=430, last_token=900)
    found = resolve(server(given, reported=durations(decode=5000)))
    decode = next(each for each in found.phases if each.phase is Phase.DECODE)
    assert us(5000) == decode.reported_us


@suspect("resolve.merged_marks counts only scheduled sequences as seen")
def test_one_of_two_sequences_without_a_schedule() -> None:
    """An engine that gives no schedule was seen in part all the same; our token came first."""
    own = BOUNDS | marks(first_token=300, last_token=900)
    seen = sequence(first_token=500, last_token=600)
    found = resolve(server(own, sequences=(seen,), expected_sequences=2))
    assert us(300) == found.ttft_us
    assert us(100) == found.duration_us(Phase.DELIVERY)


@suspect("resolve._reported takes the decode of one sequence for that of all")
def test_decode_of_two_sequences_on_a_foreign_clock() -> None:
    """We saw tokens for 600 ms; that one of two sequences took 200 of them is not the decode."""
    own = BOUNDS | marks(first_token=300, last_token=900)
    both = tuple(Sequence(reported=durations(queue=100, decode=each)) for each in (200, 600))
    found = resolve(server(own, sequences=both, expected_sequences=2))
    assert us(600) == found.duration_us(Phase.DECODE)


@suspect("resolve._reported takes a sequence without a stated queue for one that did not wait")
def test_queue_that_only_one_of_two_sequences_states() -> None:
    """A sequence that says nothing of its queue does not hide the other's."""
    both = (Sequence(reported=durations(queue=100)), Sequence(reported=durations(decode=200)))
    found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
    assert us(100) == found.duration_us(Phase.QUEUE)


@suspect("recorder.ending asks whether a key is there, not whether it is true")
def test_a_peer_that_is_still_there_hides_no_failure() -> None:
    """To say that the peer is not gone, or that there is no failure yet, says nothing more."""
    for nothing in ({"peer_gone": False}, {"failure": None}):
        recorder = RequestRecorder(Side.SERVER, clock=FakeClock())
        recorder.ending(**nothing)
        recorder.fail(Outcome.ERROR, "x")
        assert Outcome.ERROR is recorder.evidence().ending.failure
