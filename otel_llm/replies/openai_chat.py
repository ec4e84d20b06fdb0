"""OpenAI's chat completions, legacy completions and embeddings, as every server imitates them."""

from __future__ import annotations

from otel_llm.emit.values import as_count
from otel_llm.replies.capture import Captured
from otel_llm.replies.dialect import Dialect, Telling
from otel_llm.replies.engines import read_body
from otel_llm.replies.failure import failure_in
from otel_llm.replies.fields import field, listed, plain, says, word
from otel_llm.replies.reply import Reply

_OBJECTS = frozenset({"chat.completion", "chat.completion.chunk", "text_completion"})
_CHANNELS = ("content", "reasoning_content", "reasoning", "refusal", "thinking")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def fits(item: object) -> bool:
    """Whether *item* has choices, or a list of embeddings."""
    kind = word(item, "object")
    if kind in _OBJECTS or (kind == "list" and isinstance(field(item, "data"), list)):
        return True
    return isinstance(field(item, "choices"), list)


def token(item: object) -> bool:
    """Whether any choice has a piece of text, reasoning, refusal, audio or a call."""
    return any(_has_piece(plain(choice)) for choice in listed(item, "choices"))


def _has_piece(choice: object) -> bool:
    delta = field(choice, "delta")
    if delta is None:
        delta = field(choice, "message")
    if delta is None:
        return says(field(choice, "text")) or says(field(choice, "token_ids"))
    delta = plain(delta)
    for name in _CHANNELS:
        if says(field(delta, name)):
            return True
    calls = [field(call, "function") for call in listed(delta, "tool_calls")]
    calls.append(field(delta, "function_call"))
    if any(says(field(call, "name")) or says(field(call, "arguments")) for call in calls):
        return True
    audio = field(delta, "audio")
    if audio is not None and (says(field(audio, "data")) or says(field(audio, "transcript"))):
        return True
    return says(field(choice, "token_ids"))  # its text is held back


def read(reply: Reply, item: object) -> None:
    """Add the facts of a chunk or of a whole answer."""
    item = plain(item)
    reply.failed(failure_in(item))
    reply.named(field(item, "id"), field(item, "model"), field(item, "system_fingerprint"))
    if word(item, "object") == "list":
        reply.counted(input=field(field(item, "usage"), "prompt_tokens"))
        reply.end_record = True
        return
    for position, each in enumerate(listed(item, "choices")):
        choice = plain(each)
        index = as_count(field(choice, "index"))
        index = position if index is None else index
        reply.finished(index, field(choice, "finish_reason"))
        if reply.captured is not None:
            _capture(reply.captured, index, choice)
    read_usage(reply, field(item, "usage"))
    read_body(reply, item)


def read_usage(reply: Reply, usage: object) -> None:
    """Add the token counts of an OpenAI `usage`, under its older or its newer names.

    Nothing but zeros is a placeholder: Ollama has one in every chunk.
    """
    if usage is None:
        return
    usage = plain(usage)
    given = (field(usage, "prompt_tokens"), field(usage, "input_tokens"))
    came = (field(usage, "completion_tokens"), field(usage, "output_tokens"))
    read_in = next((n for each in given if (n := as_count(each)) is not None), None)
    made = next((n for each in came if (n := as_count(each)) is not None), None)
    if not (read_in or made):
        return
    reply.counted(input=read_in, output=made)
    for name in ("prompt_tokens_details", "input_tokens_details"):
        if (details := plain(field(usage, name))) is not None:
            reply.counted(
                cached=field(details, "cached_tokens"),
                cache_written=field(details, "cache_write_tokens"),
            )
    for name in ("completion_tokens_details", "output_tokens_details"):
        if (details := plain(field(usage, name))) is not None:
            reply.counted(reasoning=field(details, "reasoning_tokens"))
    # DeepSeek, Moonshot and SGLang have them one level up.
    reply.counted(cached=field(usage, "prompt_cache_hit_tokens"), aside=True)
    reply.counted(cached=field(usage, "cached_tokens"), aside=True)
    reply.counted(reasoning=field(usage, "reasoning_tokens"), aside=True)


def _capture(kept: Captured, index: int, choice: object) -> None:
    delta = field(choice, "delta")
    if delta is None:
        delta = field(choice, "message")
    kept.text(index, field(choice, "text"))
    content = field(delta, "content")
    for part in content if isinstance(content, list) else [content]:
        kept.text(index, part if isinstance(part, str) else field(part, "text"))
    kept.text(index, field(delta, "refusal"))
    thoughts = (field(delta, name) for name in _THOUGHTS)
    kept.reasoning(index, next((each for each in thoughts if each), None))
    for call in listed(delta, "tool_calls"):
        function = field(call, "function")
        kept.call(
            index,
            as_count(field(call, "index")),
            field(call, "id"),
            field(function, "name"),
            field(function, "arguments"),
        )
    function = field(delta, "function_call")
    kept.call(index, 0, None, field(function, "name"), field(function, "arguments"))


CHAT = Dialect("openai_chat", fits, token, read, Telling.FINISHING)
"""`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`."""
