"""SGLang's own route, and its `meta_info`, which its OpenAI routes have on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otel_llm import semconv
from otel_llm.emit.values import as_count, as_number
from otel_llm.replies.dialect import Dialect
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import S, field, nanoseconds, says, word
from otel_llm.replies.reply import Certainty, Reply
from otel_llm.timeline import Phase

_STAMPS = (
    (Phase.PREPROCESS, "request_received_ts", "api_server_dispatch_finish_ts"),
    (Phase.PREFILL, "forward_entry_time", "prefill_finished_time"),
    (Phase.DECODE, "prefill_finished_time", "request_finished_ts"),
)
"""Between which stamps phases lie; all are wall-clock seconds of one server."""


def fits(item: object) -> bool:
    """Whether *item* is a chunk or an answer of `/generate`, or a list of answers."""
    each = _answers(item)[:1]
    return bool(each) and isinstance(field(each[0], "meta_info"), Mapping)


def token(item: object) -> bool:
    """Whether *item* has text or token ids."""
    return any(
        says(field(each, "text")) or says(field(each, "output_ids")) for each in _answers(item)
    )


def read(reply: Reply, item: object) -> None:
    """Add the facts of a chunk, an answer or a list of answers."""
    for position, each in enumerate(_answers(item)):
        reply.failed(failure_in(each))
        meta = field(each, "meta_info")
        if not read_meta(reply, meta):
            continue
        reply.recognised("sglang", Certainty.NATIVE)
        index = as_count(field(each, "index"))
        index = position if index is None else index
        reason = field(meta, "finish_reason")
        reply.finished(index, word(reason, "type") or reason)
        if reply.captured is not None:
            reply.captured.whole_text(index, field(each, "text"))


def _answers(item: object) -> Sequence[object]:
    return item if isinstance(item, list | tuple) else (item,)


def read_meta(reply: Reply, meta: object) -> bool:
    """Add a `meta_info` object; False if it is none."""
    if not isinstance(meta, Mapping):
        return False
    reply.named(field(meta, "id"), None)
    reply.counted(
        aside=True,
        input=field(meta, "prompt_tokens"),
        output=field(meta, "completion_tokens"),
        cached=field(meta, "cached_tokens"),
        reasoning=field(meta, "reasoning_tokens"),
    )
    for phase, start, end in _STAMPS:
        reply.took(phase, _between(field(meta, start), field(meta, end)))
    reply.took(Phase.QUEUE, nanoseconds(field(meta, "queue_time"), S))
    retractions, rank = as_count(field(meta, "num_retractions")), as_count(field(meta, "dp_rank"))
    reply.preemptions = reply.preemptions if retractions is None else retractions
    reply.replica = reply.replica if rank is None else rank
    reply.noted(semconv.DRAFT_TOKENS, field(meta, "spec_draft_token_num"))
    reply.noted(semconv.ACCEPTED_TOKENS, field(meta, "spec_accept_token_num"))
    return True


def _between(start: object, end: object) -> int | None:
    """The time between two stamps, which are 0 where nothing happened."""
    first, last = as_number(start), as_number(end)
    return nanoseconds(last - first, S) if first and last else None


SGLANG = Dialect("sglang", fits, token, read)
"""`/generate`."""
