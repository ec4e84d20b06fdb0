"""Several sequences of one request become one timeline."""

from __future__ import annotations

import pytest

from otel_llm.timeline import (
    Phase,
    Sequence,
    Tokens,
    resolve,
)
from tests.timeline.builders import (
    BOUNDS,
    durations,
    laid,
    marks,
    phases,
    sequence,
    server,
    us,
)


class TestSequences:
    """Several answers to one request."""

    def test_first_scheduled_gives_the_wait(self) -> None:
        """Queue and the start of prefill are those of the sequence scheduled first."""
        late = sequence(queued=10, scheduled=300, first_token=500, last_token=900)
        soon = sequence(queued=20, scheduled=200, first_token=600, last_token=700)
        found = resolve(server(BOUNDS, sequences=(late, soon), expected_sequences=2))
        assert phases(
            "preprocess 0+20 derived",
            "queue 20+180 reported",
            "prefill 200+300 reported",
            "decode 500+400 reported",
            "delivery 900+100 derived",
        ) == laid(found)

    def test_none_scheduled_wait_since_the_first_was_queued(self) -> None:
        """Sequences that never ran were queued when the first of them was."""
        waiting = (sequence(queued=30), sequence(queued=10))
        found = resolve(server(BOUNDS, sequences=waiting, expected_sequences=2))
        assert phases("preprocess 0+10 derived") == laid(found)

    def test_a_sequence_without_queue_stamp_keeps_the_requests_own(self) -> None:
        """A mark that the chosen sequence lacks is not taken from another sequence."""
        other = sequence(queued=90, scheduled=400)
        chosen = sequence(scheduled=200)
        given = BOUNDS | marks(queued=50)
        found = resolve(server(given, sequences=(other, chosen), expected_sequences=2))
        assert "queue 50+150 derived" in laid(found)

    def test_all_seen_outrank_what_the_outputs_show(self) -> None:
        """Our own marks count beside the sequences' only while some of these are missing."""
        own = BOUNDS | marks(first_token=300, last_token=950)
        one = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        found = resolve(server(own, sequences=(one, one), expected_sequences=2))
        assert "queue 10+100 reported" in laid(found)
        assert "decode 410+490 reported" in laid(found)

    def test_sequences_outrank_what_the_outputs_show(self) -> None:
        """An engine's own stamps say more of its tokens than our reading of its outputs."""
        given = BOUNDS | marks(first_token=450, last_token=950)
        seen = sequence(first_token=410, last_token=900)
        assert "decode 410+490 reported" in laid(resolve(server(given, sequences=(seen,))))

    @pytest.mark.parametrize(("expected", "source"), [(2, "estimated"), (1, "reported")])
    def test_fewer_than_expected_are_an_estimate(self, expected: int, source: str) -> None:
        """When some sequences were not seen, the wait of those that were is an estimate."""
        seen = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        found = resolve(server(BOUNDS, sequences=(seen,), expected_sequences=expected))
        assert f"queue 10+100 {source}" in laid(found)
        assert f"prefill 110+300 {source}" in laid(found)
        assert f"decode 410+490 {source}" in laid(found)

    def test_our_own_earlier_token_counts_beside_those_seen(self) -> None:
        """The first token is the earliest, the last the latest, whoever saw them."""
        own = BOUNDS | marks(first_token=300, last_token=950)
        seen = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        found = resolve(server(own, sequences=(seen,), expected_sequences=2))
        assert us(300) == found.ttft_us
        assert "decode 300+650 observed" in laid(found)

    def test_tokens_seen_count_beside_our_own(self) -> None:
        """The sequence seen may have been the first and the last."""
        own = BOUNDS | marks(first_token=500, last_token=800)
        seen = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        found = resolve(server(own, sequences=(seen,), expected_sequences=2))
        assert "decode 410+490 estimated" in laid(found)
        assert "delivery 900+100 derived" in laid(found)

    def test_seen_without_a_schedule_is_seen_in_part_too(self) -> None:
        """An engine that gives no schedule pushes out no token of ours either."""
        own = BOUNDS | marks(first_token=300, last_token=950)
        seen = sequence(first_token=500, last_token=900)
        found = resolve(server(own, sequences=(seen,), expected_sequences=2))
        assert "decode 300+650 observed" in laid(found)

    def test_decode_of_one_on_a_foreign_clock_is_not_that_of_all(self) -> None:
        """Where we saw tokens for 600 ms, one sequence's 200 are not the decode."""
        own = BOUNDS | marks(first_token=300, last_token=900)
        both = tuple(Sequence(reported=durations(queue=100, decode=each)) for each in (200, 600))
        found = resolve(server(own, sequences=both, expected_sequences=2))
        assert "decode 300+600 observed" in laid(found)

    def test_decode_of_the_only_one_on_a_foreign_clock_is_used(self) -> None:
        """A single sequence's decode is the request's, whatever was expected."""
        one = (Sequence(reported=durations(queue=100, decode=200)),)
        found = resolve(server(BOUNDS, sequences=one))
        assert us(200) == found.duration_us(Phase.DECODE)

    def test_none_that_states_a_queue_may_state_the_rest(self) -> None:
        """A prefill that a sequence states counts although nobody states a queue."""
        one = (Sequence(reported=durations(prefill=200)),)
        found = resolve(server(BOUNDS, sequences=one))
        assert us(200) == found.duration_us(Phase.PREFILL)

    @pytest.mark.parametrize("order", [1, -1])
    def test_queue_that_only_one_states_is_used(self, order: int) -> None:
        """A sequence that says nothing of its queue does not hide the other's."""
        both = (Sequence(reported=durations(queue=100)), Sequence(reported=durations(prefill=200)))
        found = resolve(server(BOUNDS, sequences=both[::order], expected_sequences=2))
        assert us(100) == found.duration_us(Phase.QUEUE)

    def test_first_to_be_scheduled_on_a_foreign_clock(self) -> None:
        """Of sequences known by durations only, the one that waited least gives the queue."""
        both = (Sequence(reported=durations(queue=400)), Sequence(reported=durations(queue=100)))
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert us(100) == found.duration_us(Phase.QUEUE)

    def test_durations_of_one_are_not_laid_onto_marks_of_another(self) -> None:
        """Where a sequence could be placed, its marks say how long it waited."""
        placed = sequence(queued=10, scheduled=110, first_token=410, last_token=900)
        both = (placed, Sequence(reported=durations(queue=30)))
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert us(100) == found.duration_us(Phase.QUEUE)

    def test_none_seen_leaves_our_own_marks_observed(self) -> None:
        """With no engine evidence at all our own marks are no estimates."""
        given = BOUNDS | marks(first_token=400, last_token=900)
        found = resolve(server(given, expected_sequences=4))
        assert "decode 400+500 observed" in laid(found)

    def test_tokens_are_summed(self) -> None:
        """The output of a request is that of all its sequences."""
        both = (sequence(output_tokens=3), sequence(output_tokens=4))
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert Tokens(output=7) == found.tokens

    @pytest.mark.parametrize("other", [sequence(), sequence(output_tokens=-1)])
    def test_tokens_of_some_are_not_the_sum(self, other: Sequence) -> None:
        """While one count is unknown the total is unknown."""
        both = (sequence(output_tokens=3), other)
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert found.tokens.output is None

    def test_tokens_that_were_stated_stand(self) -> None:
        """A total that was stated is not replaced by a sum."""
        found = resolve(server(BOUNDS, sequences=(sequence(output_tokens=3),), output=9))
        assert Tokens(output=9) == found.tokens

    def test_preemptions_are_summed(self) -> None:
        """Known counts are added, a known zero stays zero, unknown stays unknown."""
        counts = [(1, 2), (0, None), (None, None), (-1, None)]
        found = [
            resolve(server(BOUNDS, sequences=tuple(Sequence(preemptions=n) for n in each)))
            for each in counts
        ]
        expected = [3, 0, None, None]
        assert expected == [each.preemptions for each in found]

    def test_finish_reasons_come_in_order(self) -> None:
        """One finish reason per sequence that has one."""
        reasons = ("stop", None, "length")
        each = tuple(Sequence(finish_reason=reason) for reason in reasons)
        found = resolve(server(BOUNDS, sequences=each, expected_sequences=3))
        expected = ("stop", "length")
        assert expected == found.finish_reasons

    def test_finish_reasons_of_the_request_stand(self) -> None:
        """What the protocol said outranks what the sequences said."""
        seen = (Sequence(finish_reason="stop"),)
        found = resolve(server(BOUNDS, sequences=seen, finish_reasons=("tool_calls",)))
        expected = ("tool_calls",)
        assert expected == found.finish_reasons
