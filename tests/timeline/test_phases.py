"""Each phase: between which marks it lies, how it is known, and when there is none."""

from __future__ import annotations

import pytest

from otel_llm.timeline import (
    Ending,
    Mark,
    Outcome,
    Phase,
    Side,
    Source,
    resolve,
)
from otel_llm.timeline.marks import combined
from tests.timeline.builders import (
    BOUNDS,
    SEEN,
    SERVED,
    client,
    durations,
    engine,
    laid,
    marks,
    phases,
    server,
    us,
)

OBSERVED, REPORTED = Source.OBSERVED, Source.REPORTED
DERIVED, ESTIMATED = Source.DERIVED, Source.ESTIMATED


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

    def test_does_not_wait_like_a_client(self) -> None:
        """A server that knows nothing of its engine leaves the wait unaccounted."""
        found = resolve(server(SEEN))
        assert phases("decode 300+500 observed", "delivery 800+50 observed") == laid(found)

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

    def test_without_engine_evidence_waits_in_one_phase(self) -> None:
        """From sending to the first token is one phase when nothing is known of the engine."""
        assert phases(
            "first_token 0+300 observed", "decode 300+500 observed", "delivery 800+50 observed"
        ) == laid(resolve(client(SEEN)))

    def test_a_reply_in_one_piece_has_no_phases(self) -> None:
        """Without chunks and without engine evidence all the time is unaccounted."""
        found = resolve(client(BOUNDS, streaming=False))
        assert phases() == laid(found)
        assert us(1000) == found.unaccounted_us

    def test_engine_marks_replace_the_one_wait(self) -> None:
        """A client that knows queue and prefill shows these and no first-token phase."""
        found = resolve(client(SEEN | engine(queued=10, scheduled=200)))
        assert phases(
            "preprocess 0+10 derived",
            "queue 10+190 reported",
            "prefill 200+100 derived",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_a_schedule_alone_is_engine_evidence(self) -> None:
        """What comes before it is unaccounted, and prefill follows."""
        found = resolve(client(SEEN | engine(scheduled=200)))
        assert "prefill 200+100 derived" in laid(found)
        assert found.duration_us(Phase.FIRST_TOKEN) is None

    def test_a_reply_in_one_piece_never_waits_for_a_first_token(self) -> None:
        """Even if its first token is known, there was no stream to wait for."""
        found = resolve(client(SEEN, streaming=False))
        assert found.duration_us(Phase.FIRST_TOKEN) is None

    def test_never_waits_for_its_own_delivery(self) -> None:
        """A first delivery means nothing on a client."""
        found = resolve(client(SEEN | engine(queued=10) | marks(first_delivered=320)))
        assert found.duration_us(Phase.FIRST_TOKEN) is None

    def test_a_retry_comes_before_everything(self) -> None:
        """Time to the attempt that was answered is retry; first-token starts there."""
        found = resolve(client(SEEN | marks(sent=120), attempts=2))
        assert phases(
            "retry 0+120 observed",
            "first_token 120+180 observed",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_no_retry_no_phase(self) -> None:
        """A call that was sent once has no retry phase, not one of length zero."""
        assert resolve(client(SEEN)).duration_us(Phase.RETRY) is None

    def test_preprocess_follows_the_retry(self) -> None:
        """With engine evidence the time after a retry is preprocess until the queue."""
        given = SEEN | marks(sent=120) | engine(queued=150, scheduled=200)
        found = resolve(client(given, attempts=2))
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
        evidence = server(SERVED, side=side)
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
        assert "queue 100+150 reported" in laid(found)

    def test_of_what_a_stated_duration_leaves_is_derived(self) -> None:
        """Queue is what the load stated by the engine leaves between the two marks."""
        given = BOUNDS | marks(queued=100, scheduled=300)
        found = resolve(server(given, reported=durations(load=150)))
        assert phases(
            "preprocess 0+100 observed", "load 100+150 reported", "queue 250+50 derived"
        ) == laid(found)
