"""Parts, token counts and what a client knows of its own reading."""

from __future__ import annotations

import pytest

from otel_llm.timeline import (
    GapSummary,
    Part,
    Tokens,
    resolve,
)
from tests.timeline.builders import (
    BOUNDS,
    SEEN,
    SERVED,
    client,
    laid,
    marks,
    ns,
    phases,
    server,
    us,
)


class TestParts:
    """What was measured inside a phase."""

    def test_lie_inside_their_phase(self) -> None:
        """A part is never longer than the phase that holds it."""
        given = {Part.QUEUE_KV_TRANSFER_US: us(30), Part.PREFILL_PREEMPTED_US: us(900)}
        found = resolve(server(SERVED, parts=given))
        expected = {Part.QUEUE_KV_TRANSFER_US: us(30), Part.PREFILL_PREEMPTED_US: us(300)}
        assert expected == found.parts

    @pytest.mark.parametrize(("value", "expected"), [(us(700), us(700)), (us(5000), us(1000))])
    def test_of_an_unknown_phase_lie_inside_the_request(self, value: int, expected: int) -> None:
        """A transfer in a queue of unknown length is still no longer than everything."""
        found = resolve(server(BOUNDS, parts={Part.QUEUE_KV_TRANSFER_US: value}))
        assert {Part.QUEUE_KV_TRANSFER_US: expected} == found.parts

    def test_of_a_phase_of_no_length_have_none(self) -> None:
        """Nothing can have taken time in a queue that took none."""
        given = BOUNDS | marks(queued=10, scheduled=10)
        found = resolve(server(given, parts={Part.QUEUE_GRAMMAR_US: us(5)}))
        assert {Part.QUEUE_GRAMMAR_US: us(0)} == found.parts

    def test_of_a_request_without_an_instant_are_kept(self) -> None:
        """Where no length is known there is nothing to cut them to."""
        given = {Part.QUEUE_GRAMMAR_US: us(5)}
        assert given == resolve(server({}, parts=given)).parts

    def test_counts_are_not_cut(self) -> None:
        """The number of prefill chunks has nothing to do with microseconds."""
        given = {Part.PREFILL_CHUNKS: 10**6}
        found = resolve(server(SERVED, parts=given))
        assert given == found.parts

    @pytest.mark.parametrize("odd", [-1, None, 1.5, True])
    def test_impossible_values_are_not_there(self, odd: object) -> None:
        """A part that is no count is absent."""
        found = resolve(server(SERVED, parts={Part.PREFILL_CHUNKS: odd}))
        assert not found.parts

    def test_zero_is_known(self) -> None:
        """A part of no length is recorded."""
        given = {Part.QUEUE_GRAMMAR_US: 0}
        assert given == resolve(server(SERVED, parts=given)).parts

    @pytest.mark.parametrize(("role", "counted"), [("prefill", 0), ("decode", 1), (None, 1)])
    def test_a_kv_transfer_is_counted_once(self, role: str | None, counted: int) -> None:
        """Of two nodes that tell the same transfer only the decode node counts it."""
        given = {Part.QUEUE_KV_TRANSFER_US: us(30), Part.QUEUE_GRAMMAR_US: us(5)}
        found = resolve(server(SERVED, parts=given, role=role))
        assert counted == len(found.parts) - 1
        assert us(5) == found.parts[Part.QUEUE_GRAMMAR_US]


class TestBuffered:
    """Chunks whose arrival is unknown because the reader was slower than the network."""

    def _found(self, buffered: object, side: str = "client", known: int = 90) -> list[str]:
        make = client if side == "client" else server
        gaps = GapSummary(outputs=known) if known else None
        return laid(resolve(make(SEEN, gaps=gaps, buffered_chunks=buffered)))

    @pytest.mark.parametrize(
        ("buffered", "source"),
        [(0, "observed"), (10, "observed"), (11, "estimated"), (None, "observed")],
    )
    def test_more_than_a_tenth_makes_decode_an_estimate(
        self, buffered: int | None, source: str
    ) -> None:
        """Above ten per cent of all chunks decode is only an upper bound."""
        assert f"decode 300+500 {source}" in self._found(buffered)

    def test_other_phases_stay_observed(self) -> None:
        """Chunks that waited say nothing against the first token or the end."""
        assert phases(
            "first_token 0+300 observed", "decode 300+500 estimated", "delivery 800+50 observed"
        ) == self._found(90)

    def test_no_known_arrival_at_all_is_an_estimate(self) -> None:
        """When every chunk was waiting the decode is an upper bound too."""
        assert "decode 300+500 estimated" in self._found(1, known=0)

    @pytest.mark.parametrize(("buffered", "known"), [(10, True), (11, False)])
    def test_gaps_are_absent_when_too_few_are_known(self, buffered: int, known: bool) -> None:
        """Gaps between chunks of which more than a tenth had waited say nothing."""
        gaps = GapSummary(outputs=90, p50_us=us(1))
        found = resolve(client(SEEN, gaps=gaps, buffered_chunks=buffered))
        assert (gaps if known else None) == found.gaps

    def test_does_not_concern_a_server(self) -> None:
        """A server reads its engine's outputs, which do not wait for a reader."""
        assert "decode 300+500 observed" in self._found(90, side="server")

    @pytest.mark.parametrize("odd", [-50, True, 50.0])
    def test_impossible_counts_are_not_there(self, odd: object) -> None:
        """A count that is none changes nothing."""
        assert "decode 300+500 observed" in self._found(odd, known=1)


class TestConsumerStall:
    """Time the application spent between reads."""

    @pytest.mark.parametrize(
        ("stall_ns", "expected"), [(ns(5), us(5)), (0, 0), (ns(5000), us(1000))]
    )
    def test_lies_inside_the_request(self, stall_ns: int, expected: int) -> None:
        """It is kept in whole microseconds and never exceeds the request."""
        found = resolve(client(BOUNDS, consumer_stall_ns=stall_ns))
        assert expected == found.consumer_stall_us

    @pytest.mark.parametrize("odd", [None, -1, 1.5, True])
    def test_is_absent_when_unknown(self, odd: object) -> None:
        """What is no duration is not there."""
        assert resolve(client(BOUNDS, consumer_stall_ns=odd)).consumer_stall_us is None

    def test_of_a_request_of_unknown_length_is_absent(self) -> None:
        """Without the request's end nothing bounds it."""
        given = client(marks(received=0), consumer_stall_ns=ns(5))
        assert resolve(given).consumer_stall_us is None

    def test_is_never_subtracted(self) -> None:
        """The phases are the same with and without it."""
        without = resolve(client(SEEN))
        slow = resolve(client(SEEN, consumer_stall_ns=ns(400)))
        assert without.phases == slow.phases


class TestTokensPerOutput:
    """How many tokens an output of a server holds."""

    def test_is_tokens_by_outputs(self) -> None:
        """Eight tokens in four outputs are two each."""
        found = resolve(server(SERVED, output=8, gaps=GapSummary(outputs=4, p50_us=us(1))))
        expected = 2.0
        assert expected == found.tokens_per_output

    def test_is_unknown_to_a_client(self) -> None:
        """A client sees chunks, not outputs."""
        found = resolve(client(BOUNDS, output=8, gaps=GapSummary(outputs=4, p50_us=us(1))))
        assert found.tokens_per_output is None

    @pytest.mark.parametrize("known", [{"output": 8}, {"gaps": GapSummary(4, us(1))}])
    def test_needs_both_counts(self, known: dict[str, object]) -> None:
        """Without tokens or without outputs it is absent."""
        assert resolve(server(BOUNDS, **known)).tokens_per_output is None

    @pytest.mark.parametrize("outputs", [0, 1])
    def test_needs_a_gap(self, outputs: int) -> None:
        """It says what lies between gaps; a reply in one output has none."""
        found = resolve(server(BOUNDS, output=8, gaps=GapSummary(outputs=outputs)))
        assert found.tokens_per_output is None


@pytest.mark.parametrize("name", ["input", "output", "cached", "cache_written", "reasoning"])
def test_token_counts_are_counts(name: str) -> None:
    """A known zero stays; negative, absurd and mistyped counts are absent."""
    given = [0, 2**53, -1, 2**53 + 1, 1.0, True, "3"]
    found = [resolve(server(BOUNDS, tokens=Tokens(**{name: each}))) for each in given]
    expected = [0, 2**53, None, None, None, None, None]
    assert expected == [getattr(each.tokens, name) for each in found]


def test_tokens_of_no_sequence_are_unknown() -> None:
    """The sum over nothing is not a known zero."""
    assert resolve(server(BOUNDS, expected_sequences=0)).tokens.output is None
