"""What differs from run to run in the answers of servers, made equal; nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_COUNTS = (
    "created|prompt_tokens|total_tokens|completion_tokens|cached_tokens|size|"
    "total_duration|load_duration|prompt_eval_count|prompt_eval_cached_count|"
    "prompt_eval_duration|eval_count|eval_duration|n_prompt_tokens|"
    "time_to_first_token_ms|generation_time_ms|queue_time_ms|mean_itl_ms|tokens_per_second|"
    "id|logprob|input_length"
)
_TEXTS = "content|text|response|generated_text"
_RULES = (
    (rf'"({_COUNTS})":-?[0-9.e+-]+', r'"\1":0'),
    (rf'\\"({_COUNTS})\\":[0-9]+', r'\\"\1\\":0'),
    (r'"id":"(chatcmpl|cmpl|modelperm)-[0-9a-f]+"', r'"id":"\1"'),
    (rf'"({_TEXTS})":"(?:[^"\\]|\\.)+"', r'"\1":"T"'),
    (r'"system_fingerprint":"(.*?)-[0-9a-f]{8}"', r'"system_fingerprint":"\1"'),
    (r'"(created_at|modified_at|expires_at|digest|root)":"[^"]*"', r'"\1":""'),
    (r'"context":\[[0-9,]*\]', '"context":[]'),
    (r"request \([0-9]+ tokens\)", "request (N tokens)"),
)
_BY_THE_SERVER = {"server", "date", "connection", "transfer-encoding"}
"""Headers that an ASGI server adds."""


def masked(body: bytes) -> str:
    """A body without ids, times, texts and counts."""
    text = body.decode()
    for pattern, new in _RULES:
        text = re.sub(pattern, new, text)
    return text


def one_model(body: bytes) -> bytes:
    """A list of models cut to the one that is called `tiny`."""
    value = json.loads(body)
    cut = {
        key: [one for one in each if "tiny:latest" in one.values()] if type(each) is list else each
        for key, each in value.items()
    }
    end = b"\n" if body.endswith(b"\n") else b""
    return json.dumps(cut, separators=(",", ":")).encode() + end


def headers(given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers of an application, in their order; a length may differ."""
    return [
        (name, "N" if name == "content-length" and value != "0" else value)
        for name, value in given.items()
        if name not in _BY_THE_SERVER
    ]
