"""The requests whose answers the simulated servers must give byte for byte.

`vllm` and `ollama` hold what `tests/services/recorded.py` does not ask: routes without a model,
other shapes of an answer, and what is refused.
"""

from __future__ import annotations

from typing import Any

Requests = dict[str, tuple[str, Any]]

_MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
_LIMITS = {"max_tokens": 5, "temperature": 0}
_CHAT = {"model": "tiny", **_LIMITS, **_MESSAGES}
_TEXT = {"model": "tiny", **_LIMITS, "prompt": "The quick"}
_STREAM = {"stream": True}
_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
_EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_LONG = "long " * 5_000
_CHAT_PATH = "/v1/chat/completions"
_TEXT_PATH = "/v1/completions"

_STOPS = {"min_tokens": 4, "max_tokens": 50, "logit_bias": {"1": 100}}
"""Ends by itself after four tokens: 1 is the token of the end, and may not come sooner."""

VLLM: Requests = {
    "models": ("/v1/models", None),
    "health": ("/health", None),
    "ping": ("/ping", None),
    "version": ("/version", None),
    "chat": (_CHAT_PATH, _CHAT),
    "chat_n2": (_CHAT_PATH, _CHAT | {"n": 2, "temperature": 1, "seed": 3}),
    "chat_stream_plain": (_CHAT_PATH, _CHAT | _STREAM),
    "chat_stream_each": (_CHAT_PATH, _CHAT | _EACH),
    "chat_unknown": (_CHAT_PATH, _CHAT | {"model": "other"}),
    "chat_bad_json": (_CHAT_PATH, '{"model": "tiny", '),
    "chat_not_object": (_CHAT_PATH, "[1]"),
    "chat_no_messages": (_CHAT_PATH, {"model": "tiny"}),
    "chat_too_long": (_CHAT_PATH, _CHAT | {"messages": [{"role": "user", "content": _LONG}]}),
    "chat_too_many": (_CHAT_PATH, _CHAT | {"max_tokens": 5_000}),
    "chat_get": (_CHAT_PATH, None),
    "completions": (_TEXT_PATH, _TEXT),
    "completions_stream": (_TEXT_PATH, _TEXT | _STREAM),
    "completions_stream_usage": (_TEXT_PATH, _TEXT | _USAGE),
    "completions_two": (_TEXT_PATH, _TEXT | {"prompt": ["The quick", "brown fox"]}),
    "completions_too_long": (_TEXT_PATH, _TEXT | {"prompt": _LONG}),
    "completions_no_prompt": (_TEXT_PATH, {"model": "tiny"}),
    "unknown_route": ("/v1/nothing", _CHAT),
    "metrics": ("/metrics", None),
}
"""Requests to a vLLM with `--enable-prompt-tokens-details`."""

VLLM_METRICS: Requests = {
    "completions_metrics": (_TEXT_PATH, _TEXT),
    "completions_stream_metrics": (_TEXT_PATH, _TEXT | _USAGE),
    "chat_one_token_metrics": (_CHAT_PATH, _CHAT | {"max_tokens": 1}),
    "chat_n2_metrics": (_CHAT_PATH, _CHAT | {"n": 2, "temperature": 1, "seed": 3}),
    "chat_stream_stop_metrics": (_CHAT_PATH, _CHAT | _USAGE | _STOPS),
}
"""Requests to a vLLM with `--enable-per-request-metrics` and no details of prompts."""

VLLM_FULL: Requests = {
    "chat_full": (_CHAT_PATH, _CHAT),
    "chat_stream_full": (_CHAT_PATH, _CHAT | _STREAM),
    "completions_full": (_TEXT_PATH, _TEXT),
}
"""Requests to a vLLM that admits none (`--max-num-queued-reqs 0`)."""

_OPTIONS = {"options": {"num_predict": 5, "temperature": 0}}
_GENERATE = {"model": "tiny", "prompt": "hi", **_OPTIONS}

OLLAMA: Requests = {
    "root": ("/", None),
    "show_unknown": ("/api/show", {"model": "other"}),
    "v1_models": ("/v1/models", None),
    "unknown_route": ("/api/nothing", None),
    "generate_get": ("/api/generate", None),
    "generate_empty": ("/api/generate", ""),
    "generate_wrong_type": ("/api/generate", {"model": 1}),
    "generate_no_model": ("/api/generate", {"prompt": "hi"}),
    "chat_bad_json": ("/api/chat", '{"model": "tiny", '),
    "chat_not_json": ("/api/chat", "nonsense"),
    "chat_no_messages": ("/api/chat", {"model": "tiny"}),
    "chat_too_long": (
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": _LONG}], "truncate": False}
        | _OPTIONS,
    ),
    "chat_other_unload": ("/api/chat", {"model": "tiny", "messages": [], "keep_alive": 0}),
    "generate_cold_stream": ("/api/generate", _GENERATE),
    "generate_one_token": (
        "/api/generate",
        _GENERATE | {"options": {"num_predict": 1, "temperature": 0}, "stream": False},
    ),
    "v1_chat_bad_json": (_CHAT_PATH, '{"model": "tiny", '),
    "v1_chat_no_messages": (_CHAT_PATH, {"model": "tiny"}),
    "v1_chat_stream_plain": (_CHAT_PATH, _CHAT | _STREAM),
    "v1_chat_too_long": (_CHAT_PATH, _CHAT | {"messages": [{"role": "user", "content": _LONG}]}),
    "v1_completions_stream_plain": (_TEXT_PATH, _TEXT | _STREAM),
}
"""Requests to an Ollama; the first generation loads the model."""
