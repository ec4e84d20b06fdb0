"""TGI's own routes, and its timing headers.

A plain reply states its phases in `x-…` headers: whole milliseconds, but `x-compute-time` in
seconds. A streamed reply is sent before they are known and has none of them. `x-time-per-token`
includes prefill and is therefore not read: it is no time per output token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.emit.values import as_count
from otel_llm.replies.dialect import Dialect
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import field, has, listed
from otel_llm.replies.reply import Certainty, Reply
from otel_llm.timeline import Phase

_LONGEST_S = 366 * 86_400.0


def fits(item: object) -> bool:
    """Whether *item* is a token event, an answer, or a list of answers."""
    each = _answers(item)[:1]
    return bool(each) and (has(each[0], "generated_text") or _token_of(each[0]) is not None)


def token(item: object) -> bool:
    """Whether *item* is a token event; special tokens are generated, too."""
    return _token_of(item) is not None


def _token_of(item: object) -> object | None:
    found = field(item, "token")
    known = isinstance(field(found, "text"), str) or as_count(field(found, "id")) is not None
    return found if known else None


def read(reply: Reply, item: object) -> None:
    """Add the facts of an event, an answer or a list of answers."""
    for position, each in enumerate(_answers(item)):
        reply.failed(failure_in(each))
        if fits(each):
            reply.recognised("tgi", Certainty.NATIVE)
            _read_answer(reply, position, each)


def _answers(item: object) -> Sequence[object]:
    return item if isinstance(item, list | tuple) else (item,)


def _read_answer(reply: Reply, choice: int, item: object) -> None:
    details = field(item, "details")
    text = field(item, "generated_text")
    piece = _token_of(item)
    if isinstance(text, str):
        reply.end_record = True
    reply.finished(choice, field(details, "finish_reason"))
    reply.counted(
        input=as_count(field(details, "input_length")) or len(listed(details, "prefill")) or None,
        output=field(details, "generated_tokens"),
    )
    if reply.captured is not None:
        if piece is None:
            reply.captured.text(choice, text)
        elif field(piece, "special") is not True:
            reply.captured.text(choice, field(piece, "text"))


class TgiTimes(NamedTuple):
    """What the headers of one reply say; None where they say nothing usable.

    Durations are in seconds; `inference` is prefill and decode together.
    """

    total: float | None = None
    validation: float | None = None
    queue: float | None = None
    inference: float | None = None
    compute: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def read_headers(headers: Mapping[str, str]) -> TgiTimes:
    """The timings in *headers*, whose names may be in any case; bad values are left out."""
    found = {str(name).lower(): value for name, value in headers.items()}
    return TgiTimes(
        total=_seconds(found.get("x-total-time"), 1e-3),
        validation=_seconds(found.get("x-validation-time"), 1e-3),
        queue=_seconds(found.get("x-queue-time"), 1e-3),
        inference=_seconds(found.get("x-inference-time"), 1e-3),
        compute=_seconds(found.get("x-compute-time"), 1.0),
        input_tokens=as_count(found.get("x-prompt-tokens")),
        output_tokens=as_count(found.get("x-generated-tokens")),
    )


def _seconds(text: object, unit: float) -> float | None:
    try:
        value = float(str(text)) * unit
    except (TypeError, ValueError):
        return None
    return value if 0 <= value <= _LONGEST_S else None


def take_headers(reply: Reply, headers: Mapping[str, str]) -> None:
    """Add what TGI's headers say; the sum of prefill and decode is not taken apart."""
    times = read_headers(headers)
    if times.validation is not None:
        reply.took(Phase.PREPROCESS, round(times.validation * 1e9))
    if times.queue is not None:
        reply.took(Phase.QUEUE, round(times.queue * 1e9))
    if times.inference is not None:
        reply.noted(semconv.REPORTED_INFERENCE_US, round(times.inference * 1e6))
    reply.counted(aside=True, input=times.input_tokens, output=times.output_tokens)


TGI = Dialect("tgi", fits, token, read)
"""`/generate`, `/generate_stream`, `/`."""
