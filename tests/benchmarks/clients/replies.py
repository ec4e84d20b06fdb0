"""The bytes of a reply, as scripted by the name of the model that is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

INPUT_TOKENS = 26
WORD = " token"
OPENAI_PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Script:
    """How a server behaves: `fake-chunks20-first80-gap5` sends 20 chunks, 80 ms before the first.

    `headers` is spent before the response's headers, `gap` between chunks, milliseconds all. After
    `cut` chunks the connection is lost. A `status` other than 200 is the whole answer.
    """

    chunks: int = 16
    headers: int = 0
    first: int = 0
    gap: int = 0
    cut: int = -1
    status: int = 200

    @classmethod
    def of(cls, model: str) -> Script:
        """The script that a model's name holds."""
        return cls(**{name: int(value) for name, value in re.findall(r"-([a-z]+)(\d+)", model)})


@cache
def openai_events(model: str, usage: bool) -> tuple[bytes, ...]:
    """Server-sent events of a chat completion; equal ones are the same object."""
    script = Script.of(model)
    first = _event(model, choices=[_choice({"role": "assistant", "content": WORD})])
    further = _event(model, choices=[_choice({"content": WORD})])
    last = _event(model, choices=[_choice({}, "stop")])
    counts = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": script.chunks,
        "total_tokens": INPUT_TOKENS + script.chunks,
    }
    tail = [_event(model, choices=[], usage=counts)] if usage else []
    return (first, *[further] * (script.chunks - 1), last, *tail, b"data: [DONE]\n\n")


@cache
def ollama_lines(model: str) -> tuple[bytes, ...]:
    """Lines of an Ollama chat, the last with its durations; equal ones are the same object."""
    script = Script.of(model)
    further = _line(model, done=False, message={"role": "assistant", "content": WORD})
    load, prefill, decode = 1_250_000, 80_000_000, 5_000_000 * script.chunks
    last = _line(
        model,
        done=True,
        message={"role": "assistant", "content": ""},
        done_reason="stop",
        total_duration=load + prefill + decode + 310_000,
        load_duration=load,
        prompt_eval_count=INPUT_TOKENS,
        prompt_eval_duration=prefill,
        eval_count=script.chunks,
        eval_duration=decode,
    )
    return (*[further] * script.chunks, last)


def answer(path: str, body: Mapping[str, Any]) -> tuple[str, tuple[bytes, ...]]:
    """The content type and the pieces of the streamed answer to a request."""
    if path == OPENAI_PATH:
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return "text/event-stream", openai_events(body["model"], usage)
    return "application/x-ndjson", ollama_lines(body["model"])


def _event(model: str, **fields: Any) -> bytes:
    whole = {
        "id": "chatcmpl-8f1c2d3e4a5b6c7d",
        "object": "chat.completion.chunk",
        "created": 1764460800,
        "model": model,
        **fields,
    }
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _line(model: str, **fields: Any) -> bytes:
    whole = {"model": model, "created_at": "2026-01-01T00:00:00Z", **fields}
    return json.dumps(whole).encode() + b"\n"
