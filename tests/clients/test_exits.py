"""Every way to leave a stream of the OpenAI client: one span, ended then and there, judged right.

In each test the stream (and whatever else is not dropped) is still held when the span is looked
at, so that nothing is owed to the garbage collector unless the test says so.
"""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import (
    attributes,
    collected,
    requests,
    soon,
)
from tests.clients.exits import CUT, LONG, abandoned, ended, surroundings_fixture
from tests.clients.fixtures import Ask
from tests.fakes.openai_server import DONE, ROLE, Answer, failing, hanging, stream, word

__all__ = ["surroundings_fixture"]


def test_read_to_the_end(captured: CapturedTelemetry, ask: Ask) -> None:
    """The span ends with the last chunk, and knows the usage."""
    opened = ask(stream(5))
    assert len([each for each in opened if not captured.spans]) == 8
    assert ended(captured, "ok", StatusCode.UNSET)
    assert (
        attributes(captured)[semconv.INPUT_TOKENS],
        attributes(captured)[semconv.OUTPUT_TOKENS],
    ) == (7, 5)


def test_break_and_keep(captured: CapturedTelemetry, ask: Ask) -> None:
    """Leaving the loop ends it although the stream object is kept."""
    opened = ask(LONG)
    for _ in opened:
        break
    assert abandoned(captured)


def test_break_and_delete(captured: CapturedTelemetry, ask: Ask) -> None:
    """Leaving the loop and dropping the stream."""
    opened = ask(LONG)
    for _ in opened:
        break
    del opened
    assert abandoned(captured)


def test_close_unread(captured: CapturedTelemetry, ask: Ask) -> None:
    """Closed before anything was read."""
    opened = ask(LONG)
    opened.close()
    assert abandoned(captured)


def test_close_in_the_middle(captured: CapturedTelemetry, ask: Ask) -> None:
    """Closed after a few chunks that were asked for one by one."""
    opened = ask(LONG)
    next(opened), next(opened)
    opened.close()
    assert abandoned(captured)


def test_close_within_the_loop(captured: CapturedTelemetry, ask: Ask) -> None:
    """Closed while a loop is on it."""
    opened = ask(LONG)
    for number, _ in enumerate(opened):
        if number == 2:
            opened.close()
            break
    assert abandoned(captured)


def test_response_closed(captured: CapturedTelemetry, ask: Ask) -> None:
    """The HTTP response below is closed instead."""
    opened = ask(LONG)
    next(opened)
    opened.response.close()
    assert abandoned(captured)


def test_left_by_with(captured: CapturedTelemetry, ask: Ask) -> None:
    """The end of the `with` block."""
    with ask(LONG) as opened:
        next(opened)
        assert not requests(captured)
    assert abandoned(captured)


def test_never_consumed(captured: CapturedTelemetry, ask: Ask) -> None:
    """Dropped unread: ended at once, without a collection."""
    opened = ask(LONG)
    assert not requests(captured)
    del opened
    assert abandoned(captured)


def test_collected(captured: CapturedTelemetry, ask: Ask) -> None:
    """Part of a cycle that only the collector finds."""
    opened = ask(LONG)
    next(opened)
    cycle: list[Any] = [opened]
    cycle.append(cycle)
    del opened, cycle
    collected()
    assert soon(lambda: bool(requests(captured)))
    assert abandoned(captured)


def test_connection_lost(captured: CapturedTelemetry, ask: Ask) -> None:
    """The library's own error reaches the reader, and the request is one that failed."""
    opened = ask(CUT)
    with pytest.raises(openai.APIConnectionError) as raised:
        list(opened)
    assert ended(captured, "error", StatusCode.ERROR)
    kind = type(raised.value)
    assert f"{kind.__module__}.{kind.__qualname__}" == attributes(captured)[semconv.ERROR_TYPE]


def test_consumer_raises(captured: CapturedTelemetry, ask: Ask) -> None:
    """An exception in the loop's body passes, and is not the model's fault."""
    opened = ask(LONG)

    def read() -> None:
        for _ in opened:
            raise KeyError

    with pytest.raises(KeyError):
        read()
    assert abandoned(captured)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(500, "error"), (502, "error"), (400, "rejected"), (429, "rejected"), (503, "rejected")],
)
def test_http_error(captured: CapturedTelemetry, ask: Ask, status: int, outcome: str) -> None:
    """An error's status: refused, or failed."""
    with pytest.raises(openai.APIStatusError):
        ask(failing(status))
    assert ended(captured, outcome, StatusCode.ERROR)
    assert (status, str(status)) == (
        attributes(captured)[semconv.HTTP_STATUS],
        attributes(captured)[semconv.ERROR_TYPE],
    )


def test_error_event(captured: CapturedTelemetry, ask: Ask) -> None:
    """An error event inside HTTP 200, on which the library raises."""
    opened = ask(Answer((ROLE, word(), b'data: {"error": {"message": "x", "code": 500}}\n\n')))
    with pytest.raises(openai.APIError):
        list(opened)
    assert ended(captured, "error", StatusCode.ERROR)


def test_cut_at_a_boundary(captured: CapturedTelemetry, ask: Ask) -> None:
    """A body that ends in good order, but without its end record and terminator."""
    assert len(list(ask(Answer((ROLE, word(), word()))))) == 3
    assert ended(captured, "error", StatusCode.ERROR)
    assert attributes(captured)[semconv.ERROR_TYPE] == "incomplete_stream"


def test_nothing_but_a_terminator(captured: CapturedTelemetry, ask: Ask) -> None:
    """A stream that is empty is a failure."""
    assert list(ask(Answer((DONE,)))) == []
    assert ended(captured, "error", StatusCode.ERROR)
    assert attributes(captured)[semconv.ERROR_TYPE] == "empty_stream"


def test_timeout_before_headers(captured: CapturedTelemetry, ask: Ask) -> None:
    """No answer in time."""
    with pytest.raises(openai.APITimeoutError):
        ask(stream(headers_after=0.5), timeout=0.05)
    assert ended(captured, "error", StatusCode.ERROR)


def test_timeout_in_the_middle(captured: CapturedTelemetry, ask: Ask) -> None:
    """Silence in the middle of a stream; older libraries raise what httpx does."""
    opened = ask(hanging(), timeout=0.1)
    with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout)):
        list(opened)
    assert ended(captured, "error", StatusCode.ERROR)


def test_interrupted(captured: CapturedTelemetry, ask: Ask) -> None:
    """An exception thrown into the reading itself is a failure, and passes unchanged."""
    reading = iter(ask(LONG))
    next(reading)
    with pytest.raises(KeyboardInterrupt):
        reading.throw(KeyboardInterrupt())
    assert ended(captured, "error", StatusCode.ERROR)


def test_read_on_after_a_break(captured: CapturedTelemetry, ask: Ask) -> None:
    """Ended by the first loop and only once; what the library then does is unchanged."""
    opened = ask(stream(5))
    for _ in opened:
        break
    assert len(list(opened)) == 7
    assert abandoned(captured)
