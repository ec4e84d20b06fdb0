"""Requests that generate no tokens: prefilled until their last result, and no phase of tokens."""

from __future__ import annotations

import pytest

from otel_llm.timeline import Ending, Mark, Outcome, Phase, Sequence, Side, Source, resolve
from tests.timeline.builders import (
    BOUNDS,
    COMPLETE,
    client,
    durations,
    engine,
    laid,
    marks,
    phases,
    sequence,
    server,
    us,
)

RESULT = engine(queued=10, scheduled=110, first_token=410, last_token=410)
SILENT = {"generates": False, "streaming": False}
FAILED = Ending(failure=Outcome.ERROR, error_type="x")


def test_phases() -> None:
    """Queue, prefill and delivery tile the request."""
    found = resolve(server(BOUNDS | RESULT, **SILENT))
    assert laid(found) == phases(
        "preprocess 0+10 derived",
        "queue 10+100 reported",
        "prefill 110+300 reported",
        "delivery 410+590 derived",
    )
    assert found.unaccounted_us == 0


def test_several_results() -> None:
    """Prefill of the first that was scheduled lasts until the last result of all."""
    several = [
        sequence(
            queued=10, scheduled=100 + 100 * n, first_token=200 + 200 * n, last_token=200 + 200 * n
        )
        for n in range(3)
    ]
    found = resolve(server(BOUNDS, sequences=tuple(several), expected_sequences=3, **SILENT))
    assert (found.duration_us(Phase.QUEUE), found.duration_us(Phase.PREFILL)) == (us(90), us(500))


def test_only_our_own_marks() -> None:
    """Without the engine nobody knows when prefill began, so that it is left out."""
    given = BOUNDS | marks(queued=10, last_token=410)
    found = resolve(server(given, **SILENT))
    assert laid(found) == phases("preprocess 0+10 observed", "delivery 410+590 observed")
    assert found.unaccounted_us == us(400)


def test_stated_durations() -> None:
    """An engine on another clock says how long; they end where the result came."""
    stated = Sequence(reported=durations(queue=100, prefill=290))
    given = BOUNDS | marks(queued=10, last_token=410)
    found = resolve(server(given, sequences=(stated,), **SILENT))
    assert found.duration_us(Phase.QUEUE) == us(100)
    assert found.duration_us(Phase.PREFILL) == us(290)
    assert found.duration_us(Phase.DECODE) is None


@pytest.mark.parametrize("side", list(Side))
def test_no_token_is_known(side: Side) -> None:
    """No time to a first one, and no time for each."""
    found = resolve(server(BOUNDS | RESULT, side=side, output=5, **SILENT))
    assert (found.ttft_us, found.tpot_us) == (None, None)
    assert not {Phase.FIRST_TOKEN, Phase.DECODE} & {each.phase for each in found.phases}


def test_a_streamed_reply() -> None:
    """Chunks that are delivered make no first-token phase."""
    given = BOUNDS | RESULT | marks(first_delivered=430)
    found = resolve(server(given, generates=False))
    assert [each.phase for each in found.phases][-2:] == [Phase.PREFILL, Phase.DELIVERY]


def test_a_client() -> None:
    """It knows nothing of the engine, and calls none of the wait a first token."""
    found = resolve(client(BOUNDS | marks(last_token=410), **SILENT))
    assert (found.ttft_us, found.duration_us(Phase.FIRST_TOKEN)) == (None, None)
    assert found.duration_us(Phase.DELIVERY) == us(590)


@pytest.mark.parametrize(
    ("last", "ended_in"),
    [("queued", Phase.QUEUE), ("scheduled", Phase.PREFILL), ("last_token", Phase.PREFILL)],
)
def test_a_failure(last: str, ended_in: Phase) -> None:
    """It ended in the queue or in prefill, also where some of several results had come."""
    upto = Mark[last.upper()]
    given = {mark: at for mark, at in RESULT.items() if mark.value <= upto.value}
    found = resolve(server(BOUNDS | given, ending=FAILED, **SILENT))
    assert (found.outcome, found.ended_in) == (Outcome.ERROR, ended_in)


def test_a_failure_after_the_last_result() -> None:
    """The reply was under way."""
    ending = COMPLETE._replace(failure=Outcome.CANCELLED, error_type="x")
    found = resolve(server(BOUNDS | RESULT, ending=ending, **SILENT))
    assert found.ended_in is Phase.DELIVERY


def test_a_request_that_generates() -> None:
    """The same marks are the first and the last token of one that does."""
    found = resolve(server(BOUNDS | RESULT, streaming=False))
    assert found.ttft_us == us(410)
    assert (Phase.DECODE, Source.REPORTED) in {(each.phase, each.source) for each in found.phases}
