"""The phase that was open when a request did not end well."""

from __future__ import annotations

import pytest

from otel_llm.timeline import Ending, Evidence, Outcome, Phase, Side, resolve
from tests.timeline.builders import client, engine, marks, server

TOKENS = marks(received=0, first_token=400, last_token=900, finished=1000)
NO_TOKEN = marks(received=0, finished=1000)
ERROR, CANCELLED = Outcome.ERROR, Outcome.CANCELLED
ABANDONED, REJECTED = Outcome.ABANDONED, Outcome.REJECTED


class TestEndedIn:
    """The phase that was open when a request did not end well."""

    WAITS = engine(queued=10, scheduled=110)
    CUT = Ending(failure=ERROR, error_type="x")

    def _server(self, *names: str, **more: object) -> Phase | None:
        seen = TOKENS | self.WAITS | marks(first_delivered=430)
        given = {mark: each for mark, each in seen.items() if mark.name.lower() in names}
        return resolve(server(NO_TOKEN | given, **({"ending": self.CUT} | more))).ended_in

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [
            ((), Phase.PREPROCESS),
            (("queued",), Phase.QUEUE),
            (("queued", "scheduled"), Phase.PREFILL),
            (("queued", "scheduled", "first_token"), Phase.FIRST_TOKEN),
            (("queued", "first_token", "first_delivered"), Phase.DECODE),
            (("queued", "first_token", "first_delivered", "last_token"), Phase.DECODE),
        ],
    )
    def test_follows_the_last_mark(self, seen: tuple[str, ...], expected: Phase) -> None:
        """On a server the latest mark that was reached tells what was open."""
        assert expected is self._server(*seen)

    def test_is_delivery_once_the_engine_was_done(self) -> None:
        """A peer that leaves after the last token interrupts only the delivery."""
        ending = Ending(peer_gone=True)
        found = self._server("first_token", "last_token", ending=ending, finish_reasons=("stop",))
        assert Phase.DELIVERY is found

    def test_is_not_delivery_without_a_last_token(self) -> None:
        """A delivery begins with the last token, which nobody saw."""
        ending = Ending(peer_gone=True)
        found = self._server(
            "first_token", "first_delivered", ending=ending, finish_reasons=("stop",)
        )
        assert Phase.DECODE is found

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [(("queued",), None), (("queued", "scheduled"), Phase.PREFILL), ((), Phase.PREPROCESS)],
    )
    def test_is_unknown_after_handing_over_to_a_silent_engine(
        self, seen: tuple[str, ...], expected: Phase | None
    ) -> None:
        """A request of which its engine tells nothing may be queued or computing."""
        assert expected is self._server(*seen, engine_silent=True)

    def test_is_delivery_after_an_end_record(self) -> None:
        """The same holds when the protocol's end record was written."""
        ending = Ending(peer_gone=True, end_record=True)
        assert Phase.DELIVERY is self._server("first_token", "last_token", ending=ending)

    def test_is_decode_when_the_engine_aborts(self) -> None:
        """A finish reason `abort` finishes nothing: the latest token is not the last."""
        seen = ("first_token", "first_delivered", "last_token")
        for ending in (Ending(), Ending(terminator=True)):
            found = self._server(*seen, ending=ending, finish_reasons=("abort",))
            assert Phase.DECODE is found

    def test_is_decode_in_an_engine_that_delivers_nothing(self) -> None:
        """An in-process engine has no `send`; after its first token it is in decode."""
        given = server(TOKENS, side=Side.ENGINE, ending=Ending(abandoned=True))
        assert Phase.DECODE is resolve(given).ended_in

    def test_is_decode_without_a_stream(self) -> None:
        """A reply in one piece has no first delivery to wait for."""
        assert Phase.DECODE is self._server("queued", "first_token", streaming=False)

    @pytest.mark.parametrize("side", [Side.CLIENT, Side.PROXY])
    @pytest.mark.parametrize(("streaming", "expected"), [(True, Phase.FIRST_TOKEN), (False, None)])
    def test_of_a_peer_that_saw_no_token(
        self, side: Side, streaming: bool, expected: Phase | None
    ) -> None:
        """Across a network a stream was waiting for its first token; else nobody can tell."""
        given = client(NO_TOKEN, streaming=streaming, ending=self.CUT, side=side)
        assert expected is resolve(given).ended_in

    def test_of_a_client_that_saw_tokens(self) -> None:
        """After the first token a client was in decode."""
        assert Phase.DECODE is resolve(client(TOKENS, ending=self.CUT)).ended_in

    @pytest.mark.parametrize("outcome", [CANCELLED, ABANDONED, REJECTED, ERROR])
    def test_is_told_of_every_outcome_but_success(self, outcome: Outcome) -> None:
        """Whatever went wrong, something was open."""
        given = server(NO_TOKEN | self.WAITS, ending=Ending(failure=outcome))
        assert Phase.PREFILL is resolve(given).ended_in

    def test_is_absent_of_a_success(self) -> None:
        """A request that ended well was in no phase."""
        assert resolve(server(TOKENS | self.WAITS)).ended_in is None

    def test_is_absent_without_a_timeline(self) -> None:
        """Without a single instant nothing is known of phases."""
        assert resolve(Evidence(Side.SERVER, ending=self.CUT)).ended_in is None
