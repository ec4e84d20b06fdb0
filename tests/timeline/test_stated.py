"""Durations that an engine states itself, laid onto the marks."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm.timeline import (
    Phase,
    Sequence,
    Side,
    resolve,
)
from otel_llm.timeline.layout import usable_durations
from tests.timeline.builders import (
    BOUNDS,
    SEEN,
    SERVED,
    client,
    durations,
    engine,
    laid,
    marks,
    ns,
    phases,
    server,
    us,
)


class TestStated:
    """Durations that an engine states, laid onto marks that say where."""

    @pytest.mark.parametrize(
        ("phase", "expected"),
        [
            ("preprocess", "preprocess 0+5 reported"),
            ("queue", "queue 10+5 reported"),
            ("prefill", "prefill 110+5 reported"),
            ("delivery", "delivery 900+5 reported"),
        ],
    )
    def test_shorter_than_its_place(self, phase: str, expected: str) -> None:
        """Where its marks are known, a phase begins with the first of them."""
        found = resolve(server(SERVED, reported=durations(**{phase: 5})))
        assert expected in laid(found)

    def test_queue_shorter_than_its_place_leaves_no_load(self) -> None:
        """What a stated queue leaves of its place is nobody's, not a load."""
        found = resolve(
            server(BOUNDS | engine(queued=10, scheduled=110), reported=durations(queue=5))
        )
        assert phases("preprocess 0+10 derived", "queue 10+5 reported") == laid(found)

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
        assert "queue 10+0 reported" in laid(found)

    @pytest.mark.parametrize("odd", [-1, 10**18, 2**70, True, 1.5, None, "1"])
    def test_impossible_values_are_not_there(self, odd: object) -> None:
        """Negative, absurd and mistyped durations are ignored, and the marks count."""
        found = resolve(server(SERVED, reported={Phase.QUEUE: odd}))
        assert "queue 10+100 reported" in laid(found)

    @pytest.mark.parametrize(("stated", "left"), [(480, 460), (490, 470)])
    def test_decode_is_stated_from_the_first_token(self, stated: float, left: float) -> None:
        """Engines count decode from FIRST_TOKEN; the part in first-token is not a misfit."""
        found = resolve(server(SERVED, reported=durations(decode=stated)))
        assert f"decode 430+{left} reported" in laid(found)

    def test_decode_that_was_cut_keeps_what_the_engine_said(self) -> None:
        """The raw value is the engine's own, not that less the first-token phase."""
        found = resolve(server(SERVED, reported=durations(decode=5000)))
        assert "decode 430+470 estimated of 5000" in laid(found)

    def test_decode_that_ended_before_the_first_delivery(self) -> None:
        """A decode shorter than the first-token phase leaves nothing after it."""
        found = resolve(server(SERVED, reported=durations(decode=15)))
        assert "decode 430+0 reported" in laid(found)

    def test_decode_begins_with_the_first_token(self) -> None:
        """Without a last token it starts at the first, which we saw, and ends by its length."""
        given = BOUNDS | marks(first_token=300)
        found = resolve(server(given, streaming=False, reported=durations(decode=200)))
        assert phases("decode 300+200 reported") == laid(found)

    def test_queue_begins_where_it_was_seen_to(self) -> None:
        """Without a schedule queue starts at QUEUED and ends by its length."""
        given = BOUNDS | marks(queued=10, first_token=600)
        found = resolve(server(given, reported=durations(queue=100)))
        assert "queue 10+100 reported" in laid(found)

    def test_prefill_ends_with_the_first_token(self) -> None:
        """Without a schedule prefill ends at FIRST_TOKEN and starts by its length."""
        given = BOUNDS | marks(queued=10, first_token=600)
        found = resolve(server(given, reported=durations(prefill=100)))
        assert "prefill 500+100 reported" in laid(found)

    def test_load_may_have_been_none(self) -> None:
        """A queue begins at QUEUED when no load before it is stated."""
        given = BOUNDS | marks(queued=10, first_token=600)
        found = resolve(server(given, reported=durations(queue=100, prefill=50)))
        assert "queue 10+100 reported" in laid(found)
        assert "prefill 110+50 reported" in laid(found)

    @pytest.mark.parametrize("make", [client, server])
    def test_a_client_does_not_know_when_the_engine_began(self, make: Any) -> None:
        """Across a network stated phases end with the first token, on a host they begin at once."""
        given = marks(received=0, first_token=300, last_token=800, finished=850)
        stated = durations(preprocess=10, queue=20, prefill=200)
        start = 70 if make is client else 0
        found = resolve(make(given, reported=stated))
        assert f"preprocess {start}+10 reported" in laid(found)
        assert f"prefill {start + 30}+200 reported" in laid(found)

    def test_a_proxys_engine_is_remote_too(self) -> None:
        """A proxy knows as little as a client of when its upstream began."""
        given = marks(received=0, first_token=300, last_token=800, finished=850)
        stated = durations(preprocess=10, queue=20, prefill=200)
        found = resolve(server(given, reported=stated, side=Side.PROXY))
        assert "preprocess 70+10 reported" in laid(found)

    def test_a_decode_says_nothing_of_the_wait(self) -> None:
        """A client that is told only the decode still waits in one phase."""
        found = resolve(client(SEEN, reported=durations(decode=490)))
        assert "first_token 0+300 observed" in laid(found)
        assert "decode 300+490 reported" in laid(found)

    def test_after_a_retry_the_engine_is_still_remote(self) -> None:
        """The attempt that was answered crossed the network like any other."""
        stated = durations(preprocess=10, queue=20, prefill=70)
        found = resolve(client(SEEN | marks(sent=120), attempts=2, reported=stated))
        assert phases(
            "retry 0+120 observed",
            "preprocess 200+10 reported",
            "queue 210+20 reported",
            "prefill 230+70 reported",
            "decode 300+500 observed",
            "delivery 800+50 observed",
        ) == laid(found)

    def test_on_both_sides_of_an_unknown_one(self) -> None:
        """Queue begins with its mark and decode ends with its own; prefill lies between."""
        given = BOUNDS | marks(queued=10, last_token=900)
        found = resolve(server(given, streaming=False, reported=durations(queue=100, decode=300)))
        assert phases(
            "preprocess 0+10 observed",
            "queue 10+100 reported",
            "decode 600+300 reported",
            "delivery 900+100 observed",
        ) == laid(found)

    @pytest.mark.parametrize(("beyond_ns", "believed"), [(0, True), (1, False)])
    def test_of_up_to_a_leap_year_are_believed(self, beyond_ns: int, believed: bool) -> None:
        """No duration is longer than 366 days."""
        longest = 366 * 24 * 3600 * 10**9
        found = usable_durations({Phase.QUEUE: longest + beyond_ns}, None)
        assert believed is (Phase.QUEUE in found)

    @pytest.mark.parametrize("wait", ["preprocess", "load", "queue", "prefill"])
    def test_any_stated_wait_replaces_the_clients_own(self, wait: str) -> None:
        """One phase before the first token is engine evidence."""
        found = resolve(client(SEEN, reported=durations(**{wait: 50})))
        assert "first_token" not in " ".join(laid(found))
        assert us(50) == found.duration_us(Phase(wait))

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
        given = BOUNDS | marks(queued=20, first_token=150)
        stated = Sequence(reported=durations(queue=50, prefill=60))
        found = resolve(server(given, reported=durations(queue=70), sequences=(stated,)))
        assert "queue 20+70 reported" in laid(found)
        assert "prefill 90+60 reported" in laid(found)


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

    @pytest.mark.parametrize("work", ["prefill", "decode"])
    def test_is_what_load_and_any_stated_work_leave(self, work: str) -> None:
        """One of the two suffices: engines leave out a prefill that was cached."""
        stated = durations(load=20, **{work: 100})
        found = resolve(client(BOUNDS, streaming=False, reported=stated, reported_total_ns=ns(900)))
        assert us(780) == found.duration_us(Phase.QUEUE)

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

    def test_that_was_cut_is_not_reported(self) -> None:
        """No engine ever said it, so there is no raw value to keep."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=ns(5000)))
        assert "queue 20+40 estimated" in laid(found)

    @pytest.mark.parametrize("stated", [{}, {"load": 20}])
    def test_needs_the_engines_work(self, stated: dict[str, float]) -> None:
        """What an embedding's total leaves after load is the work that nobody stated."""
        found = resolve(
            client(
                BOUNDS,
                streaming=False,
                reported=durations(**stated),
                reported_total_ns=ns(900),
            )
        )
        assert found.duration_us(Phase.QUEUE) is None

    @pytest.mark.parametrize("total", [-1, 10**18, True])
    def test_needs_a_possible_total(self, total: int) -> None:
        """A negative, absurd or mistyped total gives no queue."""
        found = resolve(client(self.SEEN, reported=self.STATED, reported_total_ns=total))
        assert found.duration_us(Phase.QUEUE) is None
