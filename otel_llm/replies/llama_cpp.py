"""The llama.cpp server's own route, and its timings, which its OpenAI routes have as well."""

from __future__ import annotations

from otel_llm import semconv
from otel_llm.emit.values import as_count
from otel_llm.replies.dialect import Dialect
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import MS, field, nanoseconds, says
from otel_llm.replies.reply import Certainty, Reply
from otel_llm.timeline import Phase

_STOPS = (("stopped_eos", "eos"), ("stopped_limit", "limit"), ("stopped_word", "word"))
"""How older servers say why they stopped."""


def fits(item: object) -> bool:
    """Whether *item* is a chunk or an answer of `/completion`."""
    return isinstance(field(item, "stop"), bool) and isinstance(field(item, "content"), str)


def token(item: object) -> bool:
    """Whether *item* has text, or tokens whose text is held back."""
    return says(field(item, "content")) or says(field(item, "tokens"))


def read(reply: Reply, item: object) -> None:
    """Add the facts of a chunk or of a whole answer."""
    reply.failed(failure_in(item))
    if not fits(item):
        return
    index = as_count(field(item, "index")) or 0
    reply.recognised("llama_cpp", Certainty.NATIVE)
    reply.named(None, field(item, "model"), field(item, "system_fingerprint"))
    if field(item, "stop") is True:
        older = next((word for flag, word in _STOPS if field(item, flag) is True), None)
        reply.end_record = True
        reply.finished(index, field(item, "stop_type") or older)
    reply.counted(input=field(item, "tokens_evaluated"), output=field(item, "tokens_predicted"))
    read_timings(reply, field(item, "timings"))
    if reply.captured is not None:
        reply.captured.text(index, field(item, "content"))


def read_timings(reply: Reply, timings: object) -> bool:
    """Add a `timings` object; False if it is none. The wait for a slot is not in it."""
    prefill = nanoseconds(field(timings, "prompt_ms"), MS)
    decode = nanoseconds(field(timings, "predicted_ms"), MS)
    reply.took(Phase.PREFILL, prefill)
    reply.took(Phase.DECODE, decode)
    evaluated, cached = as_count(field(timings, "prompt_n")), as_count(field(timings, "cache_n"))
    reply.counted(aside=True, output=field(timings, "predicted_n"), cached=cached)
    if evaluated is not None and cached is not None:
        reply.counted(aside=True, input=evaluated + cached)
    reply.noted(semconv.DRAFT_TOKENS, field(timings, "draft_n"))
    reply.noted(semconv.ACCEPTED_TOKENS, field(timings, "draft_n_accepted"))
    return prefill is not None or decode is not None


LLAMA_CPP = Dialect("llama_cpp", fits, token, read)
"""`/completion`."""
