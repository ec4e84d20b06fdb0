"""TTFT, TPOT and E2E: from which mark to which, and integers that add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.timeline import Ending, Mark, Sequence, Side, Source, Stamp, resolve
from otel_llm.timeline.gaps import GapSummary, to_us
from tests.timeline.builders import (
    BASE_NS,
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


class TestTtft:
    """Time to first token."""

    def test_runs_from_arrival_to_first_token(self) -> None:
        """On a server it starts when the request was received."""
        found = resolve(server(BOUNDS | engine(queued=10, first_token=400)))
        assert us(400) == found.ttft_us

    def test_of_a_retry_runs_from_the_answered_attempt(self) -> None:
        """On a client that retried, the attempts that failed do not count."""
        found = resolve(client(BOUNDS | marks(sent=150, first_token=400), attempts=2))
        assert us(250) == found.ttft_us
        assert us(1000) == found.e2e_us

    def test_does_not_wait_for_delivery(self) -> None:
        """When the token left the server is another fact."""
        found = resolve(server(BOUNDS | marks(first_token=400, first_delivered=450)))
        assert us(400) == found.ttft_us

    def test_is_that_of_the_earliest_sequence(self) -> None:
        """The first token of any answer is the first token of the request."""
        both = (sequence(first_token=500), sequence(first_token=300))
        assert us(300) == resolve(server(BOUNDS, sequences=both, expected_sequences=2)).ttft_us

    def test_is_absent_without_a_first_token(self) -> None:
        """Queue, schedule, first delivery and last token do not stand for it."""
        given = BOUNDS | marks(queued=10, scheduled=20, first_delivered=300, last_token=900)
        assert resolve(server(given)).ttft_us is None

    def test_is_absent_without_an_arrival(self) -> None:
        """Without RECEIVED neither it nor E2E begins anywhere; no other mark stands for it."""
        found = resolve(server(marks(queued=10, first_token=100, finished=1000)))
        assert found.ttft_us is found.e2e_us is None

    def test_of_a_retry_needs_no_arrival(self) -> None:
        """From sending to the first token is known even if the call is not."""
        assert us(90) == resolve(client(marks(sent=10, first_token=100))).ttft_us

    def test_is_absent_when_the_first_token_is_not_believed(self) -> None:
        """A first token before the request arrived gives no time, least of all a negative one."""
        assert resolve(server(BOUNDS | marks(first_token=-200))).ttft_us is None

    def test_of_a_reply_in_one_piece_is_known_where_the_engine_tells(self) -> None:
        """A server that does not stream still knows when the first token was made."""
        found = resolve(server(BOUNDS | engine(first_token=400), streaming=False))
        assert us(400) == found.ttft_us


class TestE2e:
    """The whole request."""

    @pytest.mark.parametrize("side", list(Side))
    def test_runs_from_arrival_to_the_end(self, side: Side) -> None:
        """It does not depend on what lies between."""
        make = client if side is Side.CLIENT else server
        assert us(1000) == resolve(make(BOUNDS | marks(last_token=600))).e2e_us

    def test_includes_retries(self) -> None:
        """The caller waited for the failed attempts too."""
        assert us(1000) == resolve(client(BOUNDS | marks(sent=700))).e2e_us

    def test_starts_and_ends_at_instants(self) -> None:
        """Start and end are whole microseconds of the wall timeline."""
        found = resolve(server(BOUNDS))
        expected = (BASE_NS // 1000, BASE_NS // 1000 + us(1000))
        assert expected == (found.start_us, found.end_us)

    def test_of_a_request_that_failed_is_recorded(self) -> None:
        """A request without a single token still took its time."""
        found = resolve(server(BOUNDS, ending=Ending(status=503)))
        assert us(1000) == found.e2e_us


class TestTpot:
    """Time per output token after the first."""

    TOKENS = marks(first_token=400, last_token=900)

    @pytest.mark.parametrize(
        ("tokens", "expected"), [(None, None), (0, None), (1, None), (2, us(500)), (11, us(50))]
    )
    def test_divides_by_the_tokens_after_the_first(
        self, tokens: int | None, expected: int | None
    ) -> None:
        """It exists from two tokens on; below that it is absent, not zero."""
        assert expected == resolve(server(BOUNDS | self.TOKENS, output=tokens)).tpot_us

    def test_includes_the_wait_for_the_first_delivery(self) -> None:
        """It runs from the first token, not from the end of the first-token phase."""
        given = BOUNDS | self.TOKENS | marks(first_delivered=450)
        found = resolve(server(given, output=6))
        assert us(100) == found.tpot_us

    def test_does_not_reach_to_the_end_of_the_request(self) -> None:
        """A slow delivery is not the model's."""
        found = resolve(server(BOUNDS | self.TOKENS | marks(finished=60_000), output=6))
        assert us(100) == found.tpot_us

    @pytest.mark.parametrize("missing", [Mark.FIRST_TOKEN, Mark.LAST_TOKEN])
    def test_needs_both_tokens(self, missing: Mark) -> None:
        """Without the first or the last token it is absent."""
        given = {mark: each for mark, each in (BOUNDS | self.TOKENS).items() if mark is not missing}
        assert resolve(server(given, output=6)).tpot_us is None

    def test_is_rounded_to_whole_microseconds(self) -> None:
        """500 ms by 7 are 71 429 µs."""
        assert us(71.429) == resolve(server(BOUNDS | self.TOKENS, output=8)).tpot_us

    def test_may_be_zero(self) -> None:
        """Two tokens in one output take no time between them; that is known."""
        given = BOUNDS | marks(first_token=400, last_token=400)
        assert us(0) == resolve(server(given, output=2)).tpot_us

    def test_of_a_request_without_an_instant_is_unknown(self) -> None:
        """Tokens without a single mark have no time."""
        assert resolve(server({}, output=6, reported=durations(decode=500))).tpot_us is None

    def test_of_a_stated_decode(self) -> None:
        """Where there are no such marks the decode that the engine states will do."""
        found = resolve(client(BOUNDS, streaming=False, reported=durations(decode=500), output=6))
        assert us(100) == found.tpot_us

    def test_prefers_marks_to_a_stated_decode(self) -> None:
        """What we saw of the tokens comes first."""
        found = resolve(client(BOUNDS | self.TOKENS, reported=durations(decode=450), output=6))
        assert us(100) == found.tpot_us


class TestTpotOfSequences:
    """Several answers to one request."""

    def test_is_the_mean(self) -> None:
        """The mean over sequences, each with its own tokens and times."""
        fast = sequence(output_tokens=11, first_token=100, last_token=200)
        slow = sequence(output_tokens=6, first_token=400, last_token=900)
        found = resolve(server(BOUNDS, sequences=(fast, slow), expected_sequences=2))
        assert us((10 + 100) / 2) == found.tpot_us

    def test_leaves_out_what_has_fewer_than_two_tokens(self) -> None:
        """A sequence of one token has no time per token, not one of zero."""
        short = sequence(output_tokens=1, first_token=100, last_token=100)
        long = sequence(output_tokens=6, first_token=400, last_token=900)
        found = resolve(server(BOUNDS, sequences=(short, long), expected_sequences=2))
        assert us(100) == found.tpot_us

    @pytest.mark.parametrize(("last", "expected"), [(900, us(500)), (400, us(0))])
    def test_of_two_tokens_is_the_time_between_them(self, last: float, expected: int) -> None:
        """Two tokens suffice, and may come at once."""
        both = (sequence(output_tokens=2, first_token=400, last_token=last), sequence())
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2))
        assert expected == found.tpot_us

    @pytest.mark.parametrize("only", ["first_token", "last_token"])
    def test_leaves_out_what_lacks_one_of_its_ends(self, only: str) -> None:
        """A sequence that was cut has no time per token, and hides none."""
        cut = sequence(output_tokens=6, **{only: 500})
        good = sequence(output_tokens=6, first_token=400, last_token=900)
        found = resolve(server(BOUNDS, sequences=(cut, good), expected_sequences=2))
        assert us(100) == found.tpot_us

    def test_leaves_out_what_ended_before_it_began(self) -> None:
        """A last token before the first gives no time."""
        odd = sequence(output_tokens=6, first_token=500, last_token=400)
        good = sequence(output_tokens=6, first_token=400, last_token=900)
        found = resolve(server(BOUNDS, sequences=(odd, good), expected_sequences=2))
        assert us(100) == found.tpot_us

    def test_is_never_the_window_by_the_sum(self) -> None:
        """With counts per sequence unknown, tokens of both over the time of both is no rate."""
        both = (
            sequence(first_token=100, last_token=900),
            sequence(first_token=100, last_token=900),
        )
        found = resolve(server(BOUNDS, sequences=both, expected_sequences=2, output=40))
        assert found.tpot_us is None

    @pytest.mark.parametrize("make", [client, server])
    def test_of_several_that_were_not_seen_is_unknown(self, make: Any) -> None:
        """A client that asked for two answers does not know how the tokens are spread."""
        given = BOUNDS | marks(first_token=100, last_token=900)
        assert us(20) == resolve(make(given, output=41)).tpot_us
        assert resolve(make(given, output=41, expected_sequences=2)).tpot_us is None

    @pytest.mark.parametrize(
        ("first", "last", "expected"),
        [
            (400, 3_600_000, None),
            (-2, 500, None),
            (400, 1001.001, None),
            (400, 1001, us(120.2)),
            (-1, 499, us(100)),
        ],
    )
    def test_is_not_computed_from_marks_outside_the_request(
        self, first: float, last: float, expected: int | None
    ) -> None:
        """A last token an hour after the end gives no time per token."""
        one = sequence(output_tokens=6, first_token=first, last_token=last)
        assert expected == resolve(server(BOUNDS, sequences=(one,))).tpot_us

    def test_of_one_sequence_without_counts_uses_the_requests_tokens(self) -> None:
        """The only sequence has all the tokens."""
        one = (sequence(first_token=400, last_token=900),)
        assert us(100) == resolve(server(BOUNDS, sequences=one, output=6)).tpot_us

    @pytest.mark.parametrize("odd", [None, -3, 2**60, 6.0])
    def test_impossible_counts_are_not_there(self, odd: object) -> None:
        """A sequence whose count is none has no time per token."""
        one = Sequence(marks=engine(first_token=400, last_token=900), output_tokens=odd)
        assert resolve(server(BOUNDS, sequences=(one,))).tpot_us is None


class TestTpotOfBufferedChunks:
    """A client that reads late does not know when tokens came."""

    @pytest.mark.parametrize(("buffered", "expected"), [(1, us(100)), (2, None)])
    def test_is_absent_above_a_tenth(self, buffered: int, expected: int | None) -> None:
        """One chunk of ten may have waited, no more."""
        given = BOUNDS | marks(first_token=400, last_token=900)
        gaps = GapSummary(outputs=9)
        found = resolve(client(given, output=6, gaps=gaps, buffered_chunks=buffered))
        assert expected == found.tpot_us

    def test_does_not_concern_a_server(self) -> None:
        """A server's outputs wait for nobody."""
        given = BOUNDS | marks(first_token=400, last_token=900)
        assert us(100) == resolve(server(given, output=6, buffered_chunks=9)).tpot_us


class TestRounding:
    """Instants are rounded to microseconds first and subtracted then."""

    @pytest.mark.parametrize(
        ("nanoseconds", "expected"),
        [(0, 0), (499, 0), (500, 1), (999, 1), (1499, 1), (1500, 2), (2500, 3)],
    )
    def test_goes_half_up(self, nanoseconds: int, expected: int) -> None:
        """Half a microsecond goes up, always."""
        assert expected == to_us(nanoseconds)

    @pytest.mark.parametrize(("beyond_ns", "expected"), [(499, "0.001"), (500, "0.002")])
    def test_of_marks_goes_half_up_too(self, beyond_ns: int, expected: str) -> None:
        """A mark 1.5 µs after the start is two of them after it."""
        given = BOUNDS | {Mark.QUEUED: Stamp(BASE_NS + 1000 + beyond_ns)}
        assert f"preprocess 0+{expected} observed" in laid(resolve(server(given)))

    def test_comes_before_subtracting(self) -> None:
        """Two instants 0.2 µs apart on two sides of a rounding edge are 1 µs apart."""
        given = BOUNDS | {
            Mark.QUEUED: Stamp(BASE_NS + 10_400),
            Mark.SCHEDULED: Stamp(BASE_NS + 10_600),
        }
        assert "queue 0.01+0.001 observed" in laid(resolve(server(given)))

    def test_of_thirds_adds_up(self) -> None:
        """Three phases of a third of a request each add up to it exactly."""
        third = ns(100) // 3 + 1 / 3
        given = {
            Mark.RECEIVED: Stamp(BASE_NS),
            Mark.QUEUED: Stamp(BASE_NS + round(third)),
            Mark.SCHEDULED: Stamp(BASE_NS + round(2 * third)),
            Mark.FINISHED: Stamp(BASE_NS + ns(100)),
        }
        found = resolve(server(given))
        assert phases("preprocess 0+33.333 observed", "queue 33.333+33.334 observed") == laid(found)
        assert us(33.333) == found.unaccounted_us

    @given(st.lists(st.integers(0, 10**9), min_size=7, max_size=7).map(sorted))
    def test_is_exact_for_any_instants(self, times: list[int]) -> None:
        """Phases between neighbouring marks leave not a microsecond of the request over."""
        received, queued, scheduled, first, delivered, last, finished = (
            Stamp(BASE_NS + each, Source.OBSERVED) for each in times
        )
        found = resolve(
            server(
                {
                    Mark.RECEIVED: received,
                    Mark.QUEUED: queued,
                    Mark.SCHEDULED: scheduled,
                    Mark.FIRST_TOKEN: first,
                    Mark.FIRST_DELIVERED: delivered,
                    Mark.LAST_TOKEN: last,
                    Mark.FINISHED: finished,
                }
            )
        )
        assert found.e2e_us == sum(each.duration_us for each in found.phases)
        assert us(0) == found.unaccounted_us
