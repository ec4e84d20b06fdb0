"""Ollama's own routes: lines of a stream, and whole answers. Durations are nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from otel_llm.replies.capture import Captured
from otel_llm.replies.dialect import Dialect, Telling
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import field, has, listed, nanoseconds, plain, says, word
from otel_llm.replies.reply import Certainty, Reply
from otel_llm.timeline import Phase

_DURATIONS = (
    (Phase.LOAD, "load_duration"),
    (Phase.PREFILL, "prompt_eval_duration"),
    (Phase.DECODE, "eval_duration"),
)
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,30}))?(?:[Zz]|([+-])(\d\d):?(\d\d))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fits(item: object) -> bool:
    """Whether *item* is a line of `/api/generate` or `/api/chat`, or an answer of `/api/embed`."""
    if isinstance(field(item, "done"), bool):
        return True
    return has(item, "embeddings") or (has(item, "embedding") and not has(item, "object"))


def token(item: object) -> bool:
    """Whether *item* has text, a thought or a call; those of the last line count, too."""
    item = plain(item)
    message = plain(field(item, "message"))
    if message is None:
        return says(field(item, "response")) or says(field(item, "thinking"))
    channels = (field(message, name) for name in ("content", "thinking", "tool_calls"))
    return any(says(each) for each in channels)


def read(reply: Reply, item: object) -> None:
    """Add the facts of a line or of a whole answer.

    The queue is in no field: it is what the stated durations leave of the total.
    """
    item = plain(item)
    reply.failed(failure_in(item))
    if not fits(item):
        return
    reply.recognised("ollama", Certainty.NATIVE)
    reply.named(None, field(item, "model"))
    if field(item, "done") is not False:
        reply.end_record = True
        reply.finished(0, field(item, "done_reason"))
    for phase, name in _DURATIONS:
        reply.took(phase, nanoseconds(field(item, name), 1))
    total = nanoseconds(field(item, "total_duration"), 1)
    reply.reported_total_ns = reply.reported_total_ns if total is None else total
    reply.counted(
        input=field(item, "prompt_eval_count"),
        output=field(item, "eval_count"),
        cached=field(item, "prompt_eval_cached_count"),
    )
    if reply.captured is not None:
        _capture(reply.captured, item)


def _capture(kept: Captured, item: object) -> None:
    message = field(item, "message")
    kept.text(0, field(item, "response"))
    kept.text(0, field(message, "content"))
    kept.reasoning(0, field(item, "thinking"))
    kept.reasoning(0, field(message, "thinking"))
    for call in listed(message, "tool_calls"):
        function = field(call, "function")
        name = word(function, "name")
        if name:  # calls come whole, so that each one is another
            kept.call(0, len(kept.tool_calls()), None, name, field(function, "arguments"))


def epoch_ns(created_at: object) -> int | None:
    """`created_at` as nanoseconds since the Unix epoch, or None if it is no such time.

    Ollama writes 0 to 9 digits of a second, without trailing zeros, and any offset.
    """
    match = _STAMP.fullmatch(created_at) if isinstance(created_at, str) else None
    if match is None:
        return None
    *parts, fraction, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        moment = datetime(*(int(part) for part in parts), tzinfo=UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    since = moment - _EPOCH - (-offset if sign == "-" else offset)
    return (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))


OLLAMA = Dialect("ollama", fits, token, read, Telling.DONE)
"""`/api/generate`, `/api/chat`, `/api/embed`."""
