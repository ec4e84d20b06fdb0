"""Prompts and answers as attributes: only on request, redacted, cut, and without binaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from otel_llm import semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.values import Value, as_json, as_texts, clean_text

_BINARY_KEYS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file", "blob"})


def content_attributes(attribute: str, content: object, settings: EmitSettings) -> dict[str, Value]:
    """Attributes for one piece of structured content; empty unless capture is switched on.

    Text that is cut ends at a character boundary, and its length in characters before the cut
    is written beside it.
    """
    if not settings.capture_content or content is None:
        return {}
    shown = settings.redact(attribute, content) if settings.redact else content
    if shown is None:
        return {}
    if isinstance(content, tuple):  # of texts, such as stop sequences: no structure
        texts = as_texts([*shown]) if isinstance(shown, list | tuple) else None
        return {attribute: tuple(each[: settings.content_limit] for each in texts)} if texts else {}
    shown = without_binaries(shown)
    text = clean_text(shown) if isinstance(shown, str) else as_json(shown)
    if text is None:
        return {}
    if len(text) <= settings.content_limit:
        return {attribute: text}
    return {
        attribute: clean_text(text[: settings.content_limit]),
        semconv.content_length(attribute): len(text),
    }


def prompt_of(body: Mapping[str, Any], names: Iterable[str]) -> object:
    """What a request's *body* asks: the first of its fields with one of these *names*, or None."""
    return next((body[name] for name in names if body.get(name) is not None), None)


def as_messages(content: object) -> object:
    """Prompts and chat messages in the conventions' form: a role and parts."""
    if isinstance(content, str):
        return [_message("user", content)]
    if not isinstance(content, list):
        return content
    if all(isinstance(each, str) for each in content):
        return [_message("user", each) for each in content]
    return [
        _message(str(each["role"]), each.get("content"))
        if isinstance(each, Mapping) and "role" in each
        else each
        for each in content
    ]


def _message(role: str, content: object) -> dict[str, object]:
    pieces = content if isinstance(content, list) else [content] if content is not None else []
    return {"role": role, "parts": [_part(piece) for piece in pieces]}


def _part(piece: object) -> object:
    if isinstance(piece, str):
        return {"type": "text", "content": piece}
    if isinstance(piece, Mapping) and isinstance(piece.get("text"), str):
        return {"type": "text", "content": piece["text"]}
    return piece


def without_binaries(content: Any) -> Any:
    """*content* with images, audio and files replaced by a short description of each."""
    if isinstance(content, Mapping):
        if content.get("type") == "base64":
            return {**content, "data": f"<{len(str(content.get('data', '')))} characters>"}
        return {key: _described(key, value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_binaries(item) for item in content]
    if isinstance(content, bytes | bytearray):
        return f"<{len(content)} bytes>"
    if isinstance(content, str) and content.startswith("data:") and ";base64," in content[:128]:
        return _binary(content)
    return content


def _described(key: object, value: Any) -> Any:
    if key not in _BINARY_KEYS:
        return without_binaries(value)
    inner = value.get("url") or value.get("data") if isinstance(value, Mapping) else value
    return f"<{key}, {len(str(inner or ''))} characters>"


def _binary(uri: str) -> str:
    kind = uri[5:].partition(";")[0] or "binary"
    return f"<{kind[:64]}, {len(uri)} characters>"
