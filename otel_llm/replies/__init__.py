"""Replies of model servers: items in, facts out. Pure; no clock, no I/O, no OpenTelemetry SDK.

`dialect_of(item).read(reply, item)` for the items that matter, then `reply.into(...)`.
"""

from otel_llm.replies.anthropic import MESSAGES
from otel_llm.replies.capture import ToolCall
from otel_llm.replies.dialect import Dialect, Telling
from otel_llm.replies.engines import engine_of_models, provider_of, read_headers
from otel_llm.replies.failure import Failure, failure_in
from otel_llm.replies.llama_cpp import LLAMA_CPP
from otel_llm.replies.ollama import OLLAMA, epoch_ns
from otel_llm.replies.openai_chat import CHAT
from otel_llm.replies.openai_responses import RESPONSES
from otel_llm.replies.reply import Reply
from otel_llm.replies.sglang import SGLANG
from otel_llm.replies.tgi import TGI

DIALECTS = (CHAT, RESPONSES, MESSAGES, OLLAMA, TGI, SGLANG, LLAMA_CPP)
"""Every wire format that is known. At most one fits an item."""


def dialect_of(item: object) -> Dialect | None:
    """The dialect of *item*, or None.

    Any dialect reads an item that is only an error; it gets the first.
    """
    found = next((each for each in DIALECTS if each.fits(item)), None)
    return DIALECTS[0] if found is None and failure_in(item) is not None else found


__all__ = [
    "CHAT",
    "DIALECTS",
    "LLAMA_CPP",
    "MESSAGES",
    "OLLAMA",
    "RESPONSES",
    "SGLANG",
    "TGI",
    "Dialect",
    "Failure",
    "Reply",
    "Telling",
    "ToolCall",
    "dialect_of",
    "engine_of_models",
    "epoch_ns",
    "failure_in",
    "provider_of",
    "read_headers",
]
