"""The requests whose answers are recorded: path, and a body of JSON, of bare text, or none."""

from __future__ import annotations

from typing import Any

from tests.services import llama_cpp, ollama

Requests = dict[str, tuple[str, Any]]

_MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
_LIMITS = {"max_tokens": 5, "temperature": 0}
_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
_TOO_LONG = "long " * llama_cpp.CONTEXT
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "clock",
            "description": "Tell the time",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"type": "string", "enum": ["UTC"]}},
                "required": ["zone"],
            },
        },
    }
]
_CHAT_PATH = "/v1/chat/completions"
_TEXT_PATH = "/v1/completions"

# vLLM, llama.cpp and Ollama all have a model of this name.
_CHAT = {"model": "tiny", **_LIMITS, **_MESSAGES}
_TEXT = {"model": "tiny", **_LIMITS, "prompt": "The quick"}
_RESPONSE = {"model": "tiny", "input": "hi", "max_output_tokens": 5, "temperature": 0}
_MESSAGE = {"model": "tiny", **_LIMITS, **_MESSAGES}

VLLM: Requests = {
    "chat_stream": (_CHAT_PATH, _CHAT | _USAGE),
    "chat_invalid": (_CHAT_PATH, _CHAT | {"max_tokens": -1}),
    "completions_n3": (_TEXT_PATH, _TEXT | {"n": 3, "temperature": 1, "seed": 3}),
    "responses_stream": ("/v1/responses", _RESPONSE | {"stream": True}),
}
"""Requests to a vLLM with default settings."""

VLLM_METRICS: Requests = {
    "chat_metrics": (_CHAT_PATH, _CHAT),
    "chat_stream_metrics": (_CHAT_PATH, _CHAT | _USAGE),
}
"""Requests to a vLLM that reports metrics with each answer."""

_CALL = _CHAT | {"model": llama_cpp.TOOL_MODEL_NAME, "max_tokens": 100, "tools": _TOOLS}
_NATIVE = {"prompt": "The quick", "n_predict": 5, "temperature": 0}
_PROGRESS = {"timings_per_token": True, "return_progress": True}

LLAMA_CPP: Requests = {
    "chat": (_CHAT_PATH, _CHAT),
    "chat_again": (_CHAT_PATH, _CHAT),
    "chat_n2": (_CHAT_PATH, _CHAT | {"n": 2}),
    "chat_stream": (_CHAT_PATH, _CHAT | _USAGE),
    "chat_stream_timings": (_CHAT_PATH, _CHAT | _USAGE | _PROGRESS),
    "chat_other_model": (_CHAT_PATH, _CHAT | {"model": "other"}),
    "chat_bad_json": (_CHAT_PATH, '{"model": "tiny", '),
    "chat_invalid": (_CHAT_PATH, {"model": "tiny"}),
    "chat_too_long": (_CHAT_PATH, _CHAT | {"messages": [{"role": "user", "content": _TOO_LONG}]}),
    "completions": (_TEXT_PATH, _TEXT),
    "completions_stream": (_TEXT_PATH, _TEXT | _USAGE),
    "completion": ("/completion", _NATIVE),
    "completion_stream": ("/completion", _NATIVE | {"stream": True}),
    "completion_stop": ("/completion", _NATIVE | {"n_predict": 50, "stop": ["e"]}),
    "responses": ("/v1/responses", _RESPONSE),
    "responses_stream": ("/v1/responses", _RESPONSE | {"stream": True}),
    "messages": ("/v1/messages", _MESSAGE),
    "messages_stream": ("/v1/messages", _MESSAGE | {"stream": True}),
    "models": ("/v1/models", None),
    "slots": ("/slots", None),
    "metrics": ("/metrics", None),
    "unknown_route": ("/v1/nothing", _CHAT),
}
"""Requests to a llama.cpp; the second is answered from its cache."""

LLAMA_CPP_TOOLS: Requests = {
    "chat_tools": (_CHAT_PATH, _CALL),
    "chat_tools_stream": (_CHAT_PATH, _CALL | _USAGE),
}
"""Requests to a llama.cpp whose model calls tools."""

_LLAMA_CPP_THINKING = _CHAT | {"model": llama_cpp.THINKING_MODEL_NAME, "max_tokens": 20}

LLAMA_CPP_THINKING: Requests = {
    "chat_thinking": (_CHAT_PATH, _LLAMA_CPP_THINKING),
    "chat_thinking_stream": (_CHAT_PATH, _LLAMA_CPP_THINKING | _USAGE),
}
"""Requests to a llama.cpp whose model thinks."""

_EMBED = {"model": ollama.EMBEDDING_MODEL_NAME, "input": ["hi", "there"]}

LLAMA_CPP_EMBEDDINGS: Requests = {
    "embeddings": ("/v1/embeddings", _EMBED),
    "embedding": ("/embedding", {"content": "hi"}),
}
"""Requests to a llama.cpp for embeddings."""

_OPTIONS = {"options": {"num_predict": 5, "temperature": 0}}
_GENERATE = {"model": ollama.MODEL_NAME, "prompt": "hi", **_OPTIONS}
_OLLAMA_CHAT = {"model": ollama.MODEL_NAME, **_MESSAGES, **_OPTIONS}
_THINK = {"model": ollama.THINKING_MODEL_NAME, "think": True}
_OLLAMA_CALL = {
    "model": ollama.TOOL_MODEL_NAME,
    "tools": _TOOLS,
    "options": {"num_predict": 100, "temperature": 0},
}
_WHOLE = {"stream": False}
_UNKNOWN = {"model": "other"}
_WRONG = {"model": ollama.EMBEDDING_MODEL_NAME}
_KEPT = {"truncate": False, "shift": False}

OLLAMA: Requests = {
    "generate": ("/api/generate", _GENERATE | _WHOLE),
    "generate_stream": ("/api/generate", _GENERATE),
    "generate_json": ("/api/generate", _GENERATE | _WHOLE | {"format": "json"}),
    "generate_unknown": ("/api/generate", _GENERATE | _UNKNOWN),
    "generate_bad_json": ("/api/generate", '{"model": "tiny", '),
    "generate_too_long": ("/api/generate", _GENERATE | _KEPT | {"prompt": _TOO_LONG}),
    "chat": ("/api/chat", _OLLAMA_CHAT | _WHOLE),
    "chat_stream": ("/api/chat", _OLLAMA_CHAT),
    "chat_tools": ("/api/chat", _OLLAMA_CHAT | _OLLAMA_CALL | _WHOLE),
    "chat_tools_stream": ("/api/chat", _OLLAMA_CHAT | _OLLAMA_CALL),
    "chat_thinking": ("/api/chat", _OLLAMA_CHAT | _THINK | _WHOLE),
    "chat_thinking_stream": ("/api/chat", _OLLAMA_CHAT | _THINK),
    "chat_cannot_think": ("/api/chat", _OLLAMA_CHAT | {"think": True}),
    "chat_cannot_chat": ("/api/chat", _OLLAMA_CHAT | _WRONG),
    "chat_unknown": ("/api/chat", _OLLAMA_CHAT | _UNKNOWN),
    "embed": ("/api/embed", _EMBED),
    "embeddings": ("/api/embeddings", _WRONG | {"prompt": "hi"}),
    "v1_chat": (_CHAT_PATH, _CHAT),
    "v1_chat_stream": (_CHAT_PATH, _CHAT | _USAGE),
    "v1_chat_tools_stream": (_CHAT_PATH, _CALL | _USAGE),
    "v1_chat_unknown": (_CHAT_PATH, _CHAT | _UNKNOWN),
    "v1_completions": (_TEXT_PATH, _TEXT),
    "v1_completions_stream": (_TEXT_PATH, _TEXT | _USAGE),
    "v1_embeddings": ("/v1/embeddings", _EMBED),
    "v1_responses_stream": ("/v1/responses", _RESPONSE | {"stream": True}),
    "v1_messages_stream": ("/v1/messages", _MESSAGE | {"stream": True}),
    "ps": ("/api/ps", None),
    "tags": ("/api/tags", None),
    "version": ("/api/version", None),
    "unload": ("/api/generate", {"model": ollama.MODEL_NAME, "keep_alive": 0}),
    "load": ("/api/generate", {"model": ollama.MODEL_NAME}),
}
"""Requests to an Ollama; the first loads the model."""

OLLAMA_OVERLOADED: Requests = {"generate_overloaded": ("/api/generate", _GENERATE | _OLLAMA_CALL)}
"""A request for which there is no room."""
