"""Errors that replies state, in all their shapes."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm.replies import DIALECTS, Failure, Reply, failure_in
from otel_llm.replies.failure import STREAM_ERROR
from otel_llm.timeline import Outcome
from tests.replies.builders import played, resolved

WORDY = "the prompt was 'secret'"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"error": {"message": WORDY, "type": "BadRequestError", "code": 400}},
         Failure("BadRequestError", 400, refused=True)),
        ({"error": {"message": WORDY, "type": "InternalServerError", "code": 500}},
         Failure("InternalServerError", 500)),
        ({"error": {"message": WORDY, "type": "unavailable_error", "code": 503}},
         Failure("unavailable_error", 503, refused=True)),
        ({"error": {"message": WORDY, "type": None, "code": "invalid_api_key"}},
         Failure("invalid_api_key", refused=True)),
        ({"error": {"message": WORDY, "code": 502}}, Failure("502", 502)),
        ({"error": {"message": WORDY, "status": "UNAVAILABLE"}}, Failure("UNAVAILABLE")),
        ({"error": WORDY, "error_type": "validation"}, Failure("validation", refused=True)),
        ({"error": WORDY, "error_type": "overloaded"}, Failure("overloaded", refused=True)),
        ({"error": WORDY, "error_type": "generation"}, Failure("generation")),
        ({"error": WORDY}, Failure(STREAM_ERROR)),
        ({"error": "oneword"}, Failure(STREAM_ERROR)),
        ({"object": "error", "message": WORDY, "type": "NotFoundError", "code": 404},
         Failure("NotFoundError", 404, refused=True)),
        ({"type": "error", "error": {"type": "api_error", "message": WORDY}},
         Failure("api_error")),
        ({"type": "error", "code": "server_error", "message": WORDY}, Failure("server_error")),
        ({"error": {"type": WORDY, "code": WORDY}}, Failure(STREAM_ERROR)),
        ({"error": {"type": "x" * 65}}, Failure(STREAM_ERROR)),
        ({"error": {"type": "req_7f3a91c20d"}}, Failure(STREAM_ERROR)),
        ({"error": {"type": "tout-à-coup"}}, Failure(STREAM_ERROR)),
        ({"error": {"type": "x\n"}}, Failure(STREAM_ERROR)),
        ({"error": ["a"]}, Failure(STREAM_ERROR)),
        ({"error": True}, Failure(STREAM_ERROR)),
    ],
)  # fmt: skip
def test_an_error(item: object, expected: Failure) -> None:
    """Its type is a word that it has, and never its message; a status tells a refusal."""
    assert expected == failure_in(item)


@pytest.mark.parametrize("error", [None, "", {}, [], False, 0])
def test_no_error(error: object) -> None:
    """An `error` that is empty is none."""
    assert failure_in({"choices": [], "error": error}) is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_every_dialect_reads_it(dialect: Any) -> None:
    """An item that is only an error fails the reply, whatever came before it."""
    reply = Reply()
    dialect.read(reply, {"error": WORDY, "error_type": "overloaded"})
    assert reply.error == Failure("overloaded", refused=True)
    assert not dialect.token({"error": WORDY})


def test_the_first_error_stays() -> None:
    """What follows an error is its consequence."""
    found = resolved([{"error": {"type": "first"}}, {"error": {"type": "second"}}])
    assert found.error_type == "first"


def test_an_error_beside_a_whole_answer() -> None:
    """A finish reason and an error together are a failure."""
    chunk = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
    found = resolved([chunk, {"error": {"type": "late"}}])
    assert (found.outcome, found.error_type) == (Outcome.ERROR, "late")


def test_a_refusal_with_a_status_in_a_stream() -> None:
    """An error of 4xx before any token is a refusal, though the status was 200."""
    found = played([(5, {"error": {"message": WORDY, "code": 429}})], 6)
    assert (found.outcome, found.error_type) == (Outcome.REJECTED, "429")
