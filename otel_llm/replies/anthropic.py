"""Anthropic's messages, which vLLM and Ollama serve as well: events, and whole messages."""

from __future__ import annotations

from otel_llm.emit.values import as_count
from otel_llm.replies.capture import Captured
from otel_llm.replies.dialect import Dialect
from otel_llm.replies.engines import read_body
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import field, listed, says, word
from otel_llm.replies.reply import Reply

_EVENTS = frozenset({
    "content_block_delta", "content_block_start", "content_block_stop", "message", "message_delta",
    "message_start", "message_stop", "ping",
})  # fmt: skip


def fits(item: object) -> bool:
    """Whether *item* is a message, one of its events, or an error in an event."""
    kind = word(item, "type")
    return kind in _EVENTS or (kind == "error" and field(item, "error") is not None)


def token(item: object) -> bool:
    """Whether *item* is a piece of text, thought or arguments, or begins a call."""
    kind = word(item, "type")
    if kind == "content_block_delta":
        delta = field(item, "delta")
        return any(says(field(delta, name)) for name in ("text", "thinking", "partial_json"))
    block = field(item, "content_block") if kind == "content_block_start" else None
    return any(says(field(block, name)) for name in ("text", "thinking", "name"))


def read(reply: Reply, item: object) -> None:
    """Add the facts of an event or of a whole message."""
    kind = word(item, "type")
    reply.failed(failure_in(item))
    message = field(item, "message") if kind == "message_start" else item
    if kind in ("message", "message_start"):
        reply.named(field(message, "id"), field(message, "model"))
        read_body(reply, message)
    delta = field(item, "delta") if kind == "message_delta" else message
    reply.finished(0, field(delta, "stop_reason"))
    if kind in ("message", "message_stop"):
        reply.end_record = True
    _read_usage(reply, field(message, "usage"))
    if reply.captured is not None:
        _capture(reply.captured, kind, item)


def _read_usage(reply: Reply, usage: object) -> None:
    """Token counts; here the input is without what was read from or written to the cache."""
    rest = as_count(field(usage, "input_tokens"))
    cached = as_count(field(usage, "cache_read_input_tokens"))
    written = as_count(field(usage, "cache_creation_input_tokens"))
    whole = None if rest is None else rest + (cached or 0) + (written or 0)
    reply.counted(
        input=whole, output=field(usage, "output_tokens"), cached=cached, cache_written=written
    )


def _capture(kept: Captured, kind: str, item: object) -> None:
    if kind == "content_block_delta":
        delta, index = field(item, "delta"), as_count(field(item, "index"))
        kept.text(0, field(delta, "text"))
        kept.reasoning(0, field(delta, "thinking"))
        kept.call(0, index, None, None, field(delta, "partial_json"))
    elif kind == "content_block_start":
        block = field(item, "content_block")
        _capture_block(kept, as_count(field(item, "index")), block, "")
    elif kind == "message":
        for position, block in enumerate(listed(item, "content")):
            _capture_block(kept, position, block, field(block, "input"))


def _capture_block(kept: Captured, index: int | None, block: object, arguments: object) -> None:
    kept.text(0, field(block, "text"))
    kept.reasoning(0, field(block, "thinking"))
    kept.call(0, index, field(block, "id"), field(block, "name"), arguments)


MESSAGES = Dialect("anthropic", fits, token, read)
"""`/v1/messages`."""
