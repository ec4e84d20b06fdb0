"""OpenAI's responses: events of a stream, and whole response objects."""

from __future__ import annotations

from otel_llm.emit.values import as_count
from otel_llm.replies.capture import Captured
from otel_llm.replies.dialect import Dialect
from otel_llm.replies.engines import read_body
from otel_llm.replies.failure import Failure, failure_in
from otel_llm.replies.fields import field, listed, says, word
from otel_llm.replies.openai_chat import read_usage
from otel_llm.replies.reply import Reply

_FAILED = frozenset({"failed", "cancelled"})


def fits(item: object) -> bool:
    """Whether *item* is a response, one of its events, or a bare error event."""
    kind = word(item, "type")
    if kind.startswith("response.") or word(item, "object") == "response":
        return True
    return kind == "error" and field(item, "error") is None


def token(item: object) -> bool:
    """Whether *item* is a delta with something in it, or begins a call."""
    kind = word(item, "type")
    if kind.endswith(".delta"):
        return says(field(item, "delta"))
    return kind == "response.output_item.added" and says(field(field(item, "item"), "name"))


def read(reply: Reply, item: object) -> None:
    """Add the facts of an event or of a whole response."""
    kind = word(item, "type")
    if kind.startswith("response."):
        if reply.captured is not None:
            _capture_event(reply.captured, kind, item)
        item = field(item, "response")
        if item is None:
            return
    _read_response(reply, item)


def _read_response(reply: Reply, response: object) -> None:
    status = word(response, "status")
    reply.failed(failure_in(response) or (Failure(status) if status in _FAILED else None))
    reply.named(field(response, "id"), field(response, "model"))
    if status == "completed":
        reply.finished(0, status)
    elif status == "incomplete":
        reply.finished(0, field(field(response, "incomplete_details"), "reason") or status)
    read_usage(reply, field(response, "usage"))
    read_body(reply, response)
    output = listed(response, "output")
    if reply.captured is not None and output:
        reply.captured.clear()
        for position, item in enumerate(output):
            _capture_item(reply.captured, position, item)


def _capture_event(kept: Captured, kind: str, event: object) -> None:
    index, delta = as_count(field(event, "output_index")), field(event, "delta")
    if kind in ("response.output_text.delta", "response.refusal.delta"):
        kept.text(0, delta)
    elif kind.startswith("response.reasoning") and kind.endswith(".delta"):
        kept.reasoning(0, delta)
    elif kind.endswith(("arguments.delta", "input.delta")):
        kept.call(0, index, None, None, delta)
    elif kind == "response.output_item.added":
        item = field(event, "item")
        kept.call(0, index, field(item, "call_id"), field(item, "name"), "")


def _capture_item(kept: Captured, position: int, item: object) -> None:
    """One piece of the output; all pieces together are one answer."""
    thinks = word(item, "type") == "reasoning"
    for part in (*listed(item, "content"), *listed(item, "summary")):
        text = field(part, "text")
        if thinks:
            kept.reasoning(0, text)
        else:
            kept.text(0, text if text is not None else field(part, "refusal"))
    arguments = field(item, "arguments")
    arguments = field(item, "input") if arguments is None else arguments
    kept.call(0, position, field(item, "call_id"), field(item, "name"), arguments)


RESPONSES = Dialect("openai_responses", fits, token, read)
"""`/v1/responses`."""
