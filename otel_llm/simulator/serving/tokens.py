"""A toy tokenizer, and a maker of texts that have exactly as many tokens as they should."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any
from zlib import crc32

LONGEST_PIECE = 16
"""A word with its leading space is one token up to so many characters, else several."""
_PIECE = re.compile(rf"\s*\S{{1,{LONGEST_PIECE}}}|\s+")
_WORDS = (
    "the", "queue", "was", "long", "and", "slow", "so", "every", "token", "came", "late", "but",
    "prefill", "took", "its", "time", "while", "one", "batch", "ran", "on", "cache", "blocks",
    "were", "full", "then", "decode", "went", "step", "by", "until", "a", "stream", "of", "words",
    "had", "left", "server", "in", "order", "now", "and", "again", "each", "request", "waits",
)  # fmt: skip


def tokenize(text: str) -> list[int]:
    """Token ids of *text*; equal heads have equal ids, so that prefixes can be cached."""
    return [crc32(piece.encode("utf-8", "replace")) for piece in _PIECE.findall(text)]


def chat_tokens(messages: object) -> list[int]:
    """Token ids of a conversation: two for each message beside its text, and one for the answer."""
    found: list[int] = []
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, Mapping):
            role = str(message.get("role"))
            found += [crc32(role.encode("utf-8", "replace")), *tokenize(_text(message)), _END]
    return [*found, _ANSWER]


_END = crc32(b"<end>")
_ANSWER = crc32(b"<assistant>")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


class Writer:
    """Writes the answers; each word is one token, for `tokenize` too.

    Args:
        seed: Same seed, same text.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311 - no secret is made of it

    def words(self, tokens: int) -> list[str]:
        """The next *tokens* tokens, each with its leading space."""
        return [f" {self._random.choice(_WORDS)}" for _ in range(tokens)]
