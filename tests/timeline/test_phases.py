"""Each phase: between which marks it lies, how it is known, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_llm.clock import YEAR_2000_NS
from otel_llm.timeline import (
    Ending,
    Evidence,
    Mark,
    Outcome,
    Part,
    Phase,
    Sequence,
    Side,
    Source,
    Stamp,
    Tokens,
    resolve,
)
from otel_llm.timeline.gaps import GapSummary
from otel_llm.timeline.marks import combined
from tests.timeline.builders import (
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

OBSERVED, REPORTED = Source.OBSERVED, Source.REPORTED
DERIVED, ESTIMATED = Source.DERIVED, Source.ESTIMATED

BOUNDS = marks(received=0, finished=1000)
ENGINE = engine(queued=10, scheduled=110, first_token=410, last_token=900)
SERVED = BOUNDS | ENGINE | marks(first_delivered=430)


class TestServer:
    """A streaming server that reads its engine's stamps."""

    def test_all_phases_tile_the_request(self) -> None:
        """Every phase runs from its own mark to the next, and nothing is left over."""
        found = resolve(server(SERVED))
        assert phases(
            "preprocess 0+10 derived",
            "queue 10+100 reported",
            "prefill 110+300 reported",
            "first_token 410+20 derived",
            "decode 430+470 derived",
            "delivery 900+100 derived",
        ) == laid(found)
        assert us(0) == found.unaccounted_us

    @pytest.mark.parametrize(
        ("missing", "lost"),
        [
            (Mark.QUEUED, {Phase.PREPROCESS, Phase.QUEUE}),
            (Mark.SCHEDULED, {Phase.QUEUE, Phase.PREFILL}),
            (Mark.FIRST_TOKEN, {Phase.PREFILL, Phase.FIRST_TOKEN, Phase.DECODE}),
            (Mark.LAST_TOKEN, {Phase.DECODE, Phase.DELIVERY}),
            (Mark.FIRST_DELIVERED, {Phase.FIRST_TOKEN}),
        ],
    )
    def test_a_phase_needs_both_its_marks(self, missing: Mark, lost: set[Phase]) -> None:
        """Without one mark, the phases that touch it are absent and the others stay."""
        whole = {each.phase for each in resolve(server(SERVED)).phases}
        given = {mark: stamp for mark, stamp in SERVED.items() if mark is not missing}
        found = resolve(server(given))
        assert whole - lost == {each.phase for each in found.phases}

    def test_time_without_a_phase_is_unaccounted(self) -> None:
        """What the phases do not cover is counted once, exactly."""
        given = BOUNDS | engine(queued=10, first_token=410, last_token=900)
        found = resolve(server(given))
        assert phases(
            "preprocess 0+10 derived", "decode 410+490 reported", "delivery 900+100 derived"
        ) == laid(found)
        assert us(400) == found.unaccounted_us

    def test_an_unknown_phase_has_no_duration(self) -> None:
        """Asking for a phase that is not there gives None, never zero."""
        found = resolve(server(SERVED))
        assert us(470) == found.duration_us(Phase.DECODE)
        assert found.duration_us(Phase.LOAD) is None

    def test_a_queue_of_no_length_is_recorded(self) -> None:
        """A known zero is a phase like any other."""
        given = BOUNDS | engine(queued=10, scheduled=10, first_token=410, last_token=900)
        assert "queue 10+0 reported" in laid(resolve(server(given)))

    def test_only_bounds_leave_everything_unaccounted(self) -> None:
        """A request of which nothing is known but its bounds has no phases."""
        found = resolve(server(BOUNDS))
        assert phases() == laid(found)
        assert found.e2e_us == found.unaccounted_us == us(1000)


class TestFirstToken:
    """The wait between a token in the engine and the same token in the server's `send`."""

    def test_ends_with_the_last_token_if_that_is_sooner(self) -> None:
        """A first chunk delivered after the last token leaves decode no length."""
        found = resolve(server(SERVED | marks(first_delivered=950)))
        assert "first_token 410+490 reported" in laid(found)
        assert "decode 900+0 reported" in laid(found)

    def test_is_never_of_no_length(self) -> None:
        """A token delivered in the microsecond it was made has no first-token phase."""
        found = resolve(server(SERVED | marks(first_delivered=410)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None
        assert "decode 410+490 reported" in laid(found)

    def test_of_one_microsecond_is_recorded(self) -> None:
        """The shortest difference there is makes a phase."""
        found = resolve(server(SERVED | marks(first_delivered=410.001)))
        assert us(0.001) == found.duration_us(Phase.FIRST_TOKEN)

    def test_is_absent_when_delivery_came_before_the_token(self) -> None:
        """A chunk sent before the first token delivered no token."""
        found = resolve(server(SERVED | marks(first_delivered=300)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None
        assert "decode 410+490 reported" in laid(found)

    def test_is_absent_on_replies_that_are_not_streamed(self) -> None:
        """A reply in one piece has decode directly after the first token."""
        found = resolve(server(SERVED, streaming=False))
        assert found.duration_us(Phase.FIRST_TOKEN) is None
        assert "decode 410+490 reported" in laid(found)

    def test_a_single_token_gives_no_phase_and_no_decode_time(self) -> None:
        """When the first token is the last, both phases after it have no length or are absent."""
        found = resolve(server(SERVED | engine(first_token=900) | marks(first_delivered=920)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None
        assert us(0) == found.duration_us(Phase.DECODE)

    def test_needs_no_last_token(self) -> None:
        """A stream that was cut after its first delivery still shows that wait."""
        given = {mark: each for mark, each in SERVED.items() if mark is not Mark.LAST_TOKEN}
        found = resolve(server(given, ending=Ending(peer_gone=True)))
        assert "first_token 410+20 derived" in laid(found)

    def test_a_delivery_outside_the_request_is_ignored(self) -> None:
        """A first delivery long after the end of the request is not believed."""
        found = resolve(server(SERVED | marks(first_delivered=5000)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None


class TestClient:
    """A client sees the call, chunks and the end, and perhaps what the engine says."""

    SEEN = marks(received=0, first_token=300, last_token=800, finished=850)

    def test_without_engine_evidence_waits_in_one_phase(self) -> None:
        """From sending to the first token is one phase when nothing is known of the engine."""
        assert phases(
            "first_token 0+300 observed", "decode 300+500 observed", "delivery 800+50 observed"
        ) == laid(resolve(client(self.SEEN)))

    def test_a_reply_in_one_piece_has_no_phases(self) -> None:
        """Without chunks and without engine evidence all the time is unaccounted."""
        found = resolve(client(BOUNDS, streaming=False))
        assert phases() == laid(found)
        assert us(1000) == found.unaccounted_us

    def test_engine_marks_replace_the_one_wait(self) -> None:
        """A client that knows queue and prefill shows these and no first-token phase."""
        found = resolve(client(self.SEEN | engine(queued=10, scheduled=200)))
        assert phases(
            "preprocess 0+10 derived",
            "queue 10+190 reported",
            "prefill 200+100 derived",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_never_waits_for_its_own_delivery(self) -> None:
        """A first delivery means nothing on a client."""
        found = resolve(client(self.SEEN | engine(queued=10) | marks(first_delivered=320)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None

    def test_a_retry_comes_before_everything(self) -> None:
        """Time to the attempt that was answered is retry; first-token starts there."""
        found = resolve(client(self.SEEN | marks(sent=120), attempts=2))
        assert phases(
            "retry 0+120 observed",
            "first_token 120+180 observed",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_no_retry_no_phase(self) -> None:
        """A call that was sent once has no retry phase, not one of length zero."""
        assert resolve(client(self.SEEN)).duration_us(Phase.RETRY) is None

    def test_preprocess_follows_the_retry(self) -> None:
        """With engine evidence the time after a retry is preprocess until the queue."""
        found = resolve(client(self.SEEN | marks(sent=120) | engine(queued=150, scheduled=200)))
        assert "retry 0+120 observed" in laid(found)
        assert "preprocess 120+30 derived" in laid(found)

    def test_an_idle_connection_after_the_last_token_is_delivery(self) -> None:
        """A minute in which the socket stayed open does not count as decode (D-END-01)."""
        given = marks(received=0, first_token=400, last_token=450, finished=60_500)
        found = resolve(client(given, finish_reasons=("stop",), ending=Ending()))
        assert us(50) == found.duration_us(Phase.DECODE)
        assert "delivery 450+60050 observed" in laid(found)


class TestDelivery:
    """The rest of the response after the last token."""

    @pytest.mark.parametrize(
        "ending",
        [
            Ending(),
            Ending(peer_gone=True, end_record=True),
            Ending(failure=Outcome.ERROR, error_type="x", end_record=True),
            Ending(abandoned=True),
        ],
    )
    def test_is_absent_when_a_stream_did_not_complete(self, ending: Ending) -> None:
        """Time after the last token seen of a stream that was cut is not delivery."""
        found = resolve(server(SERVED, ending=ending))
        assert found.duration_us(Phase.DELIVERY) is None
        assert us(470) == found.duration_us(Phase.DECODE)
        assert us(100) == found.unaccounted_us

    def test_is_known_of_every_reply_in_one_piece(self) -> None:
        """A reply that is not streamed has its delivery, whatever its end record."""
        found = resolve(server(SERVED, streaming=False, ending=Ending()))
        assert "delivery 900+100 derived" in laid(found)

    @pytest.mark.parametrize("side", list(Side))
    def test_is_known_on_every_side(self, side: Side) -> None:
        """Client, proxy, server and engine all have it."""
        evidence = replace(server(SERVED), side=side)
        assert us(100) == resolve(evidence).duration_us(Phase.DELIVERY)


class TestSource:
    """How a phase is known follows from how its two marks are."""

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (OBSERVED, OBSERVED, OBSERVED),
            (REPORTED, REPORTED, REPORTED),
            (DERIVED, DERIVED, DERIVED),
            (ESTIMATED, ESTIMATED, ESTIMATED),
            (OBSERVED, REPORTED, DERIVED),
            (OBSERVED, DERIVED, DERIVED),
            (REPORTED, DERIVED, DERIVED),
            (OBSERVED, ESTIMATED, ESTIMATED),
            (REPORTED, ESTIMATED, ESTIMATED),
            (DERIVED, ESTIMATED, ESTIMATED),
        ],
    )
    def test_of_two_marks(self, first: Source, second: Source, expected: Source) -> None:
        """Equal sources stay, an estimate spoils both, any other mixture is derived."""
        assert expected is combined(first, second)
        assert expected is combined(second, first)

    @pytest.mark.parametrize("source", list(Source))
    def test_of_marks_reaches_the_phase(self, source: Source) -> None:
        """A phase between two marks of one source has that source."""
        given = BOUNDS | marks(source, queued=100, scheduled=300)
        assert f"queue 100+200 {source}" in laid(resolve(server(given)))

    def test_of_a_stated_duration_is_reported(self) -> None:
        """The engine's own length wins over our two marks, which then only say where."""
        given = BOUNDS | marks(queued=100, scheduled=300)
        found = resolve(server(given, reported=durations(queue=150)))
        assert "queue 150+150 reported" in laid(found)

    def test_of_what_a_stated_duration_leaves_is_derived(self) -> None:
        """Queue is what the load stated by the engine leaves between the two marks."""
        given = BOUNDS | marks(queued=100, scheduled=300)
        found = resolve(server(given, reported=durations(load=150)))
        assert phases(
            "preprocess 0+100 observed", "load 100+150 reported", "queue 250+50 derived"
        ) == laid(found)


class TestStated:
    """Durations that an engine states, laid onto marks that say where."""

    @pytest.mark.parametrize(
        ("phase", "expected"),
        [
            ("preprocess", "preprocess 5+5 reported"),
            ("queue", "queue 105+5 reported"),
            ("prefill", "prefill 405+5 reported"),
            ("decode", "decode 430+5 reported"),
            ("delivery", "delivery 900+5 reported"),
        ],
    )
    def test_shorter_than_its_place(self, phase: str, expected: str) -> None:
        """Waits and prefill end where their marks end; decode and delivery begin there."""
        found = resolve(server(SERVED, reported=durations(**{phase: 5})))
        assert expected in laid(found)

    def test_shorter_than_its_place_leaves_time_unaccounted(self) -> None:
        """The rest of the place belongs to no phase."""
        found = resolve(server(SERVED, reported=durations(prefill=250)))
        assert us(50) == found.unaccounted_us

    def test_longer_than_its_place_is_cut(self) -> None:
        """What does not fit is clamped, called an estimate, and its raw value kept."""
        found = resolve(server(SERVED, reported=durations(queue=250)))
        assert "queue 10+100 estimated of 250" in laid(found)

    def test_longer_than_the_request_is_cut(self) -> None:
        """A prefill of an hour fits into no request of a second."""
        found = resolve(client(BOUNDS, streaming=False, reported=durations(prefill=3_600_000)))
        assert phases("prefill 0+1000 estimated of 3600000") == laid(found)

    def test_longer_by_a_millisecond_still_fits(self) -> None:
        """Rounding in the engine is no misfit: cut to its place, and still what it said."""
        found = resolve(server(SERVED, reported=durations(queue=101)))
        assert "queue 10+100 reported" in laid(found)

    def test_longer_by_more_than_a_millisecond_does_not_fit(self) -> None:
        """The tolerance is exactly one millisecond."""
        found = resolve(server(SERVED, reported=durations(queue=101.001)))
        assert "queue 10+100 estimated of 101.001" in laid(found)

    def test_zero_is_known(self) -> None:
        """A queue that the engine says took no time is recorded as such."""
        found = resolve(server(SERVED, reported=durations(queue=0)))
        assert "queue 110+0 reported" in laid(found)

    @pytest.mark.parametrize("odd", [-1, 10**18, 2**70, True, 1.5, None, "1"])
    def test_impossible_values_are_not_there(self, odd: object) -> None:
        """Negative, absurd and mistyped durations are ignored, and the marks count."""
        found = resolve(server(SERVED, reported={Phase.QUEUE: odd}))
        assert "queue 10+100 reported" in laid(found)

    def test_later_phases_keep_their_length(self) -> None:
        """When the room is short the phases nearest to the mark that follows keep theirs."""
        found = resolve(
            client(
                marks(received=0, first_token=300, last_token=800, finished=850),
                reported=durations(load=100, queue=100, prefill=250),
            )
        )
        assert phases(
            "load 0+0 estimated of 100",
            "queue 0+50 estimated of 100",
            "prefill 50+250 reported",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_a_sequence_states_what_the_request_does_not(self) -> None:
        """Durations of the only sequence are used where the request has none of its own."""
        stated = Sequence(reported=durations(queue=50, prefill=60))
        found = resolve(server(SERVED, reported=durations(queue=70), sequences=(stated,)))
        assert "queue 40+70 reported" in laid(found)
        assert "prefill 350+60 reported" in laid(found)


class TestResidualQueue:
    """Engines that state load, prefill, decode and a total, and leave the queue to be found."""

    STATED = durations(load=20, prefill=200, decode=1250)
    TOTAL = ns(1500)
    SEEN = marks(received=0, first_token=260, last_token=1510, finished=1512)

    def test_streaming(self) -> None:
        """Load and queue precede prefill, which ends with the first token we saw."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=self.TOTAL))
        assert phases(
            "load 10+20 reported",
            "queue 30+30 estimated",
            "prefill 60+200 reported",
            "decode 260+1250 reported",
            "delivery 1510+2 observed",
        ) == laid(found)
        assert us(10) == found.unaccounted_us

    def test_not_streaming(self) -> None:
        """Without marks between, the stated phases lie side by side and end with the reply."""
        found = resolve(
            client(
                marks(received=0, finished=1512),
                streaming=False,
                reported=self.STATED,
                reported_total_ns=self.TOTAL,
            )
        )
        assert phases(
            "load 12+20 reported",
            "queue 32+30 estimated",
            "prefill 62+200 reported",
            "decode 262+1250 reported",
        ) == laid(found)

    def test_is_not_computed_when_the_engine_states_it(self) -> None:
        """A queue of the engine's own is never replaced by a residual."""
        stated = self.STATED | durations(queue=5)
        found = resolve(client(self.SEEN, reported=stated, reported_total_ns=self.TOTAL))
        assert "queue 55+5 reported" in laid(found)

    def test_is_never_negative(self) -> None:
        """A total shorter than its parts leaves no queue."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=ns(1400)))
        assert us(0) == found.duration_us(Phase.QUEUE)

    def test_gives_way_to_stated_phases(self) -> None:
        """When the room is short the estimate is cut before anything the engine stated."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=ns(5000)))
        assert "load 0+20 reported" in laid(found)
        assert us(40) == found.duration_us(Phase.QUEUE)

    def test_needs_more_than_a_total(self) -> None:
        """A total alone is not a queue."""
        found = resolve(client(BOUNDS, streaming=False, reported_total_ns=ns(900)))
        assert phases() == laid(found)

    @pytest.mark.parametrize("total", [-1, 10**18, True])
    def test_needs_a_possible_total(self, total: int) -> None:
        """A negative, absurd or mistyped total gives no queue."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=total))
        assert found.duration_us(Phase.QUEUE) is None


class TestOddMarks:
    """Marks that are out of order, outside the request, or no instants."""

    def test_a_mark_out_of_order_is_left_out(self) -> None:
        """A schedule after the first token is not believed, and is named."""
        found = resolve(server(BOUNDS | engine(queued=10, scheduled=700) | marks(first_token=400)))
        assert frozenset({Mark.SCHEDULED}) == found.left_out
        assert found.duration_us(Phase.QUEUE) is None
        assert found.duration_us(Phase.PREFILL) is None

    def test_what_we_observed_outweighs_what_was_reported(self) -> None:
        """Of two marks that contradict each other the observed one stays."""
        found = resolve(server(BOUNDS | marks(scheduled=700) | engine(first_token=400)))
        assert frozenset({Mark.FIRST_TOKEN}) == found.left_out

    @pytest.mark.parametrize(
        ("better", "worse"),
        [(OBSERVED, REPORTED), (REPORTED, DERIVED), (DERIVED, ESTIMATED)],
    )
    def test_better_known_marks_stay(self, better: Source, worse: Source) -> None:
        """Observed beats reported beats derived beats estimated."""
        given = BOUNDS | marks(worse, queued=700) | marks(better, scheduled=400)
        assert frozenset({Mark.QUEUED}) == resolve(server(given)).left_out
        given = BOUNDS | marks(better, queued=700) | marks(worse, scheduled=400)
        assert frozenset({Mark.SCHEDULED}) == resolve(server(given)).left_out

    def test_the_set_that_weighs_most_stays(self) -> None:
        """One observed mark does not outweigh three reported ones that agree."""
        given = BOUNDS | engine(queued=10, scheduled=20, first_token=400) | marks(last_token=5)
        assert frozenset({Mark.LAST_TOKEN}) == resolve(server(given)).left_out

    @pytest.mark.parametrize("time_ms", [-50, 1050])
    def test_a_mark_outside_the_request_is_left_out(self, time_ms: float) -> None:
        """RECEIVED and FINISHED bound what is believed."""
        found = resolve(server(BOUNDS | marks(queued=time_ms)))
        assert frozenset({Mark.QUEUED}) == found.left_out
        assert phases() == laid(found)

    @pytest.mark.parametrize(
        ("queued_ms", "expected"), [(-1, "preprocess 0+0 estimated"), (0, "preprocess 0+0 derived")]
    )
    def test_a_mark_just_before_the_request_is_moved(self, queued_ms: float, expected: str) -> None:
        """A millisecond outside is clock noise: moved to the bound and called an estimate."""
        assert expected in laid(resolve(server(BOUNDS | engine(queued=queued_ms))))

    def test_a_mark_just_after_the_request_is_moved(self) -> None:
        """The same holds at the other end."""
        found = resolve(server(BOUNDS | engine(last_token=1001)))
        assert "delivery 1000+0 estimated" in laid(found)

    @pytest.mark.parametrize("queued_ms", [-1.001, 1001.001])
    def test_more_than_a_millisecond_is_too_much(self, queued_ms: float) -> None:
        """The tolerance is exactly one millisecond on both sides."""
        found = resolve(server(BOUNDS | engine(queued=queued_ms)))
        assert frozenset({Mark.QUEUED}) == found.left_out

    def test_a_mark_just_out_of_order_is_moved(self) -> None:
        """A first token half a millisecond before its schedule is moved to it."""
        given = BOUNDS | marks(scheduled=400) | engine(first_token=399.5)
        found = resolve(server(given))
        assert "prefill 400+0 estimated" in laid(found)
        assert frozenset() == found.left_out

    @pytest.mark.parametrize("odd_ns", [0, -1, 81_233_900_000_000, YEAR_2000_NS - 1, 2**70])
    def test_what_is_no_instant_is_not_there(self, odd_ns: int) -> None:
        """Zero, monotonic readings and other values that are no wall-clock time are ignored."""
        found = resolve(server(BOUNDS | {Mark.QUEUED: Stamp(odd_ns)}))
        assert phases() == laid(found)
        assert us(1000) == found.e2e_us

    def test_an_end_before_the_start_gives_no_time(self) -> None:
        """A request that ended before it began has no length, and no phase has one."""
        found = resolve(server(marks(received=0, queued=20, finished=-5)))
        assert us(0) == found.e2e_us
        assert frozenset({Mark.QUEUED}) == found.left_out

    def test_a_missing_end_is_the_last_mark(self) -> None:
        """Without FINISHED the request ends with what was seen last."""
        found = resolve(server(marks(received=0, first_token=400, last_token=800)))
        assert us(800) == found.e2e_us

    def test_no_marks_no_times(self) -> None:
        """Without a single instant every time is unknown, and nothing is zero."""
        found = resolve(Evidence(Side.SERVER))
        assert phases() == laid(found)
        times = (found.start_us, found.end_us, found.e2e_us, found.unaccounted_us, found.ttft_us)
        assert times == (None,) * 5


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


class TestParts:
    """What was measured inside a phase."""

    def test_lie_inside_their_phase(self) -> None:
        """A part is never longer than the phase that holds it."""
        given = {Part.QUEUE_KV_TRANSFER_US: us(30), Part.PREFILL_PREEMPTED_US: us(900)}
        found = resolve(server(SERVED, parts=given))
        expected = {Part.QUEUE_KV_TRANSFER_US: us(30), Part.PREFILL_PREEMPTED_US: us(300)}
        assert expected == found.parts

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

    SEEN = TestClient.SEEN

    def _found(self, buffered: object, side: str = "client", known: int = 90) -> list[str]:
        make = client if side == "client" else server
        gaps = GapSummary(outputs=known) if known else None
        return laid(resolve(make(self.SEEN, gaps=gaps, buffered_chunks=buffered)))

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

    def test_is_never_subtracted(self) -> None:
        """The phases are the same with and without it."""
        without = resolve(client(TestClient.SEEN))
        slow = resolve(client(TestClient.SEEN, consumer_stall_ns=ns(400)))
        assert without.phases == slow.phases


class TestTokensPerOutput:
    """How many tokens an output of a server holds."""

    def test_is_tokens_by_outputs(self) -> None:
        """Eight tokens in four outputs are two each."""
        found = resolve(server(SERVED, output=8, gaps=GapSummary(outputs=4)))
        expected = 2.0
        assert expected == found.tokens_per_output

    def test_is_unknown_to_a_client(self) -> None:
        """A client sees chunks, not outputs."""
        found = resolve(client(BOUNDS, output=8, gaps=GapSummary(outputs=4)))
        assert found.tokens_per_output is None

    @pytest.mark.parametrize("missing", [{"output": 8}, {"gaps": GapSummary(outputs=4)}])
    def test_needs_both_counts(self, missing: dict[str, object]) -> None:
        """Without tokens or without outputs it is absent."""
        assert resolve(server(BOUNDS, **missing)).tokens_per_output is None

    def test_needs_an_output(self) -> None:
        """No outputs, no division."""
        found = resolve(server(BOUNDS, output=8, gaps=GapSummary(outputs=0)))
        assert found.tokens_per_output is None


@pytest.mark.parametrize("name", ["input", "output", "cached", "cache_written", "reasoning"])
def test_token_counts_are_counts(name: str) -> None:
    """A known zero stays; negative, absurd and mistyped counts are absent."""
    given = [0, 2**53, -1, 2**53 + 1, 1.0, True, "3"]
    found = [resolve(server(BOUNDS, tokens=Tokens(**{name: each}))) for each in given]
    expected = [0, 2**53, None, None, None, None, None]
    assert expected == [getattr(each.tokens, name) for each in found]
