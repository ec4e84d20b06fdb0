"""How a request ended, and in which phase if it did not end well."""

from __future__ import annotations

import pytest

from otel_llm.timeline import Ending, Outcome, Sequence, Side, Tokens, resolve
from otel_llm.timeline.outcome import Verdict, judge
from tests.timeline.builders import COMPLETE, client, marks, server, us

OK, ERROR, CANCELLED = Outcome.OK, Outcome.ERROR, Outcome.CANCELLED
ABANDONED, REJECTED = Outcome.ABANDONED, Outcome.REJECTED

TOKENS = marks(received=0, first_token=400, last_token=900, finished=1000)
NO_TOKEN = marks(received=0, finished=1000)

ENDS = {
    # what was seen of the end, with a token or none, reasons: outcome, error.type, complete
    "end record": (Ending(end_record=True), True, (), OK, None, True),
    "end record without a token": (Ending(end_record=True), False, (), OK, None, True),
    "finish reason": (Ending(), True, ("stop",), OK, None, True),
    "finish reason without a token": (Ending(), False, ("length",), OK, None, True),
    "terminator after a token": (Ending(terminator=True), True, (), OK, None, True),
    "terminator only": (Ending(terminator=True), False, (), ERROR, "empty_stream", False),
    "nothing": (Ending(), False, (), ERROR, "incomplete_stream", False),
    "cut after a token": (Ending(), True, (), ERROR, "incomplete_stream", False),
    "cut with status 200": (Ending(status=200), True, (), ERROR, "incomplete_stream", False),
    "end record with status 200": (Ending(status=200, end_record=True), True, (), OK, None, True),
    "engine abort": (Ending(terminator=True), True, ("abort",), ERROR, "abort", False),
    "engine abort of one answer": (COMPLETE, True, ("stop", "abort"), ERROR, "abort", False),
    "engine error": (Ending(end_record=True), True, ("error",), ERROR, "error", False),
    "engine error, named": (Ending(error_type="x"), True, ("error",), ERROR, "x", False),
    "peer gone": (Ending(peer_gone=True), True, (), CANCELLED, "peer_gone", False),
    "peer gone before a token": (Ending(peer_gone=True), False, (), CANCELLED, "peer_gone", False),
    "peer gone, engine aborts": (
        Ending(peer_gone=True),
        True,
        ("abort",),
        CANCELLED,
        "peer_gone",
        False,
    ),
    "peer gone before the rest": (
        Ending(peer_gone=True, end_record=True),
        True,
        ("stop",),
        CANCELLED,
        "peer_gone",
        False,
    ),
    "abandoned": (Ending(abandoned=True), True, (), ABANDONED, None, False),
    "empty stream, closed": (
        Ending(abandoned=True, terminator=True),
        False,
        (),
        ERROR,
        "empty_stream",
        False,
    ),
    "never read": (Ending(abandoned=True), False, (), ABANDONED, None, False),
    "closed after the end": (Ending(abandoned=True, end_record=True), True, (), OK, None, True),
    "closed after the terminator": (
        Ending(abandoned=True, terminator=True),
        True,
        (),
        OK,
        None,
        True,
    ),
}

FAILURES = {
    # the verdict of the code that saw it, its error.type, with a token or none
    "error": (Ending(failure=ERROR, error_type="ValueError"), False, ERROR, "ValueError"),
    "error after tokens": (Ending(failure=ERROR, error_type="OSError"), True, ERROR, "OSError"),
    "error without a name": (Ending(failure=ERROR), True, ERROR, "_OTHER"),
    "error event, then an end": (
        Ending(failure=ERROR, error_type="generation", end_record=True),
        True,
        ERROR,
        "generation",
    ),
    "cancelled": (Ending(failure=CANCELLED, error_type="Cancelled"), True, CANCELLED, "Cancelled"),
    "cancelled without a name": (Ending(failure=CANCELLED), False, CANCELLED, "cancelled"),
    "cancelled, peer gone": (
        Ending(failure=CANCELLED, error_type="Cancelled", peer_gone=True),
        True,
        CANCELLED,
        "peer_gone",
    ),
    "error because the peer is gone": (
        Ending(failure=ERROR, error_type="BrokenPipeError", peer_gone=True),
        True,
        CANCELLED,
        "peer_gone",
    ),
    "abandoned": (Ending(failure=ABANDONED, error_type="Closed"), True, ABANDONED, None),
    "refused": (
        Ending(failure=REJECTED, error_type="overloaded"),
        False,
        REJECTED,
        "overloaded",
    ),
    "refused without a name": (Ending(failure=REJECTED), False, REJECTED, "_OTHER"),
    "refused after a token": (
        Ending(failure=REJECTED, error_type="overloaded"),
        True,
        ERROR,
        "overloaded",
    ),
    "a failure that is none": (Ending(failure=OK), True, ERROR, "_OTHER"),
}

STATUS = {
    200: None,
    399: None,
    400: REJECTED,
    401: REJECTED,
    404: REJECTED,
    422: REJECTED,
    429: REJECTED,
    499: REJECTED,
    500: ERROR,
    502: ERROR,
    503: REJECTED,
    504: ERROR,
}


@pytest.mark.parametrize(
    ("ending", "has_token", "reasons", "outcome", "error_type", "complete"),
    ENDS.values(),
    ids=ENDS.keys(),
)
def test_end_of_a_stream(
    ending: Ending,
    has_token: bool,
    reasons: tuple[str, ...],
    outcome: Outcome,
    error_type: str | None,
    complete: bool,
) -> None:
    """What was seen of a stream's end decides, and only a complete one is a success."""
    found = judge(ending, streaming=True, has_token=has_token, finish_reasons=reasons)
    assert Verdict(outcome, error_type, complete) == found


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("ending", "has_token", "outcome", "error_type"), FAILURES.values(), ids=FAILURES.keys()
)
def test_failure_that_was_seen(
    ending: Ending, has_token: bool, outcome: Outcome, error_type: str | None, streaming: bool
) -> None:
    """The code that saw an exception or an error event has the word; nothing is complete then."""
    found = judge(ending, streaming=streaming, has_token=has_token, finish_reasons=())
    assert Verdict(outcome, error_type, False) == found


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("status", "outcome"), STATUS.items())
def test_http_status(status: int, outcome: Outcome | None, streaming: bool) -> None:
    """4xx and 503 refuse, other 5xx fail, and the status is the error type; 2xx says nothing."""
    found = judge(Ending(status=status), streaming=streaming, has_token=False, finish_reasons=())
    if outcome is not None:
        assert (outcome, str(status)) == (found.outcome, found.error_type)
    else:
        assert (ERROR if streaming else OK) is found.outcome


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_http_status_after_a_token(status: int) -> None:
    """A server that generated and then refuses has failed; rejected means before any token."""
    found = judge(Ending(status=status), streaming=False, has_token=True, finish_reasons=())
    assert (ERROR, str(status)) == (found.outcome, found.error_type)


@pytest.mark.parametrize("status", [400, 499, 500])
def test_http_status_to_a_peer_that_left(status: int) -> None:
    """Whatever a server answers to nobody, the request was cancelled."""
    ending = Ending(peer_gone=True, status=status)
    found = judge(ending, streaming=False, has_token=False, finish_reasons=())
    assert Verdict(CANCELLED, "peer_gone", False) == found


@pytest.mark.parametrize(
    ("expected", "reasons", "complete"),
    [(2, ("stop",), False), (2, ("stop", "length"), True), (0, ("stop",), True), (0, (), False)],
)
def test_finish_reasons_of_every_answer(
    expected: int, reasons: tuple[str, ...], complete: bool
) -> None:
    """A stream that was cut after one of two answers is incomplete."""
    found = judge(
        Ending(), streaming=True, has_token=True, finish_reasons=reasons, expected=expected
    )
    assert complete is found.complete


def test_finish_reasons_are_counted_against_the_sequences_expected() -> None:
    """The number of answers asked for is that of the evidence."""
    given = client(TOKENS, expected_sequences=2, finish_reasons=("stop",), ending=Ending())
    assert resolve(given).incomplete


@pytest.mark.parametrize("status", [429, 500])
def test_http_status_with_a_name(status: int) -> None:
    """An error type that the reply's body gave says more than its status."""
    ending = Ending(status=status, error_type="queue_full")
    found = judge(ending, streaming=False, has_token=False, finish_reasons=())
    assert ending.error_type == found.error_type


@pytest.mark.parametrize(("status", "outcome"), [(429, REJECTED), (503, REJECTED), (500, ERROR)])
def test_http_status_and_an_exception(status: int, outcome: Outcome) -> None:
    """A client library that raises for a status does not turn a refusal into an error."""
    ending = Ending(failure=ERROR, error_type="RateLimitError", status=status)
    found = judge(ending, streaming=True, has_token=False, finish_reasons=())
    assert Verdict(outcome, "RateLimitError", False) == found


def test_an_engine_that_died_behind_a_503() -> None:
    """On a server a failure that was seen is no refusal, whatever status it was told with."""
    ending = Ending(failure=ERROR, error_type="EngineDeadError", status=503)
    found = judge(ending, streaming=False, has_token=False, finish_reasons=(), client=False)
    assert Verdict(ERROR, "EngineDeadError", False) == found


@pytest.mark.parametrize(
    ("ending", "error_type"),
    [
        (Ending(status=503), "503"),
        (Ending(failure=REJECTED, status=503), "503"),
        (Ending(failure=ERROR, error_type="ValueError", status=400), "ValueError"),
    ],
)
def test_a_server_that_refuses(ending: Ending, error_type: str) -> None:
    """A 503 without a failure, or with a refusal, and a 4xx are refusals on servers too."""
    found = judge(ending, streaming=False, has_token=False, finish_reasons=(), client=False)
    assert Verdict(REJECTED, error_type, False) == found


@pytest.mark.parametrize(("side", "outcome"), [(Side.CLIENT, REJECTED), (Side.SERVER, ERROR)])
def test_an_exception_with_a_503_depends_on_the_side(side: Side, outcome: Outcome) -> None:
    """On a client it is the refusal, on a server the reason for it."""
    ending = Ending(failure=ERROR, error_type="x", status=503)
    assert outcome is resolve(client(NO_TOKEN, side=side, ending=ending)).outcome


def test_cancelled_outranks_a_status() -> None:
    """A task that was cancelled is cancelled, whatever was answered by then."""
    ending = Ending(failure=CANCELLED, status=500)
    found = judge(ending, streaming=False, has_token=False, finish_reasons=())
    assert Verdict(CANCELLED, "cancelled", False) == found


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Ending(), OK),
        (Ending(status=200), OK),
        (Ending(end_record=True), OK),
        (Ending(terminator=True), OK),
        (Ending(peer_gone=True), CANCELLED),
        (Ending(abandoned=True), ABANDONED),
    ],
)
def test_reply_in_one_piece(ending: Ending, outcome: Outcome) -> None:
    """A reply that is not streamed needs no end record to be a success, nor a token."""
    for has_token in (True, False):
        found = judge(ending, streaming=False, has_token=has_token, finish_reasons=())
        assert outcome is found.outcome


class TestHasToken:
    """What counts as a token for a bare terminator."""

    TERMINATOR = Ending(terminator=True)

    def test_a_first_token_that_is_believed(self) -> None:
        """A mark inside the request is one."""
        assert OK is resolve(client(TOKENS, ending=self.TERMINATOR)).outcome

    def test_a_first_token_that_is_not_believed(self) -> None:
        """A mark long before the request is none."""
        given = NO_TOKEN | marks(first_token=-5000)
        assert ERROR is resolve(client(given, ending=self.TERMINATOR)).outcome

    @pytest.mark.parametrize(("output", "outcome"), [(None, ERROR), (0, ERROR), (1, OK)])
    def test_a_count_of_tokens(self, output: int | None, outcome: Outcome) -> None:
        """Usage of at least one output token is one, usage of zero is none."""
        given = client(NO_TOKEN, tokens=Tokens(output=output), ending=self.TERMINATOR)
        assert outcome is resolve(given).outcome


class TestIncomplete:
    """The marker of a stream that did not come to its end."""

    @pytest.mark.parametrize(
        ("ending", "expected"),
        [
            (Ending(end_record=True), False),
            (Ending(terminator=True), False),
            (Ending(), True),
            (Ending(abandoned=True), True),
            (Ending(peer_gone=True), True),
            (Ending(failure=ERROR), True),
        ],
    )
    def test_is_set_on_streams(self, ending: Ending, expected: bool) -> None:
        """A stream whose end record was not seen carries it."""
        assert expected is resolve(client(TOKENS, ending=ending)).incomplete

    @pytest.mark.parametrize("ending", [Ending(), Ending(failure=ERROR), Ending(status=500)])
    def test_is_never_set_on_replies_in_one_piece(self, ending: Ending) -> None:
        """What is not a stream cannot be an incomplete one."""
        assert not resolve(client(TOKENS, streaming=False, ending=ending)).incomplete

    @pytest.mark.parametrize("ending", [Ending(terminator=True), Ending()])
    def test_an_empty_stream_has_its_length_and_nothing_else(self, ending: Ending) -> None:
        """Without a token only the request's own duration is known (D-END-05)."""
        found = resolve(client(NO_TOKEN, ending=ending))
        assert found.incomplete
        assert us(1000) == found.e2e_us
        assert (found.ttft_us, found.tpot_us, found.tokens) == (None, None, Tokens())
        assert found.phases == ()


def test_finish_reasons_of_sequences_count() -> None:
    """An abort that only the engine's sequence tells is an error like one in the protocol."""
    aborted = Sequence(finish_reason="abort")
    found = resolve(server(TOKENS, ending=Ending(terminator=True), sequences=(aborted,)))
    assert (ERROR, (aborted.finish_reason,)) == (found.outcome, found.finish_reasons)


def test_only_ok_is_a_success() -> None:
    """An outcome other than ok or abandoned always has an error type, and these never have."""
    endings = [Ending(failure=each) for each in Outcome] + [COMPLETE, Ending(abandoned=True)]
    for ending in endings:
        found = resolve(client(TOKENS, ending=ending))
        assert (found.error_type is None) == (found.outcome in {OK, ABANDONED})
