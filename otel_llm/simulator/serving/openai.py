"""What a request on OpenAI's routes asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from otel_llm.simulator.serving.tokens import chat_tokens, tokenize

MOST_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields that matter; those that are wrong count as not given.

    `usage` asks for a last chunk with token counts, `usage_each` for them in every chunk.
    """

    stream: bool = False
    usage: bool = False
    usage_each: bool = False
    max_tokens: int | None = None
    n: int = 1
    priority: int = 0

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Wanted:
        """Read a body."""
        options = body.get("stream_options")
        options = options if isinstance(options, Mapping) else {}
        usage = options.get("include_usage") is True
        limit = _whole(body.get("max_completion_tokens"))
        return cls(
            stream=body.get("stream") is True,
            usage=usage,
            usage_each=usage and options.get("continuous_usage_stats") is True,
            max_tokens=_whole(body.get("max_tokens")) if limit is None else limit,
            n=min(MOST_SEQUENCES, max(1, _whole(body.get("n")) or 1)),
            priority=_whole(body.get("priority")) or 0,
        )


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def chat_prompt(body: Mapping[str, Any]) -> list[int]:
    """Token ids of a chat's messages."""
    return chat_tokens(body.get("messages"))


def text_prompts(prompt: object) -> list[list[int]]:
    """Token ids of each prompt: a text, texts, token ids, or lists of token ids."""
    given = prompt if isinstance(prompt, list) else [prompt]
    if _are_tokens(given):
        return [given]
    found = (tokenize(each) if isinstance(each, str) else each for each in given)
    return [each for each in found if isinstance(each, list) and _are_tokens(each)]


def _are_tokens(given: list[object]) -> TypeGuard[list[int]]:
    return bool(given) and all(type(each) is int for each in given)
