"""What is known of a request when it starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from otel_llm import semconv
from otel_llm.emit.values import Value, as_count, as_integer, as_number, as_text, as_texts
from otel_llm.semconv import Vocabulary
from otel_llm.timeline import Side

_EDGES = frozenset({Side.SERVER, Side.PROXY})
"""Sides on which a request may come from anyone."""
LONGEST_ID = 256
_PREFIXES = (
    "chatcmpl|cmpl|resp|msg|embd|pooling|classify|score|rerank|tokenize|transcribe|translate"
    "|decision|generate-tokens|generative-scoring"
)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RANDOM = rf"(?:{_UUID}|[0-9a-f]{{16}}|[0-9a-f]{{32}})"
_MADE_BY_A_MACHINE = re.compile(
    rf"(?:(?:{_PREFIXES})[-_])?{_RANDOM}(?:[-_](?:{_RANDOM}|beam|prompt|[0-9]{{1,6}}))*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Identity of a request: everything a sampler may look at.

    `operation` is a GenAI operation name (`chat`, `text_completion`, `embeddings`, …); `model`
    is None when it is not known; `attributes` are further attributes by their full names.
    """

    operation: str
    provider: str
    model: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def span_name(self) -> str:
        """`{operation} {model}`, or the operation alone."""
        return f"{self.operation} {self.model}" if self.model else self.operation


def request_id(given: object, side: Side) -> str | None:
    """*given* as `otel_llm.request.id`; what a client may have chosen is hashed (ADR 0014).

    On a server or proxy the id may hold a header (`X-Request-Id`), and so anything. There one of
    random hex digits or a UUID, with a server's prefix and numbers behind, is written as it is; of
    any other, `sha256:` and the first 16 hex digits. None if there is no text.
    """
    text = as_text(given)
    if text is None or side not in _EDGES or _MADE_BY_A_MACHINE.fullmatch(text):
        return text and text[:LONGEST_ID]
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


_PARAMETERS: dict[str, tuple[str, Callable[[object], Value | None]]] = {
    "max_tokens": (semconv.MAX_TOKENS, as_count),
    "max_completion_tokens": (semconv.MAX_TOKENS, as_count),
    "max_output_tokens": (semconv.MAX_TOKENS, as_count),
    "temperature": (semconv.TEMPERATURE, as_number),
    "top_p": (semconv.TOP_P, as_number),
    "seed": (semconv.SEED, as_integer),
    "frequency_penalty": (semconv.FREQUENCY_PENALTY, as_number),
    "presence_penalty": (semconv.PRESENCE_PENALTY, as_number),
    "stop": (semconv.STOP_SEQUENCES, as_texts),
    "priority": (semconv.PRIORITY, as_integer),
}


def request_parameters(body: Mapping[str, object], vocabulary: Vocabulary) -> dict[str, Value]:
    """Attributes for the parameters of an OpenAI-shaped request body; wrong types are left out."""
    found: dict[str, Value] = {}
    for key, given in body.items():
        row = _PARAMETERS.get(key)
        if row is not None and (value := row[1](given)) is not None:
            found[row[0]] = value
    top_k = as_count(body.get("top_k"))
    if top_k is not None:
        found[semconv.TOP_K] = top_k if vocabulary.top_k_is_int else float(top_k)
    choices = _choices(body)
    if choices != 1:
        found[semconv.CHOICE_COUNT] = choices
    if body.get("stream") is True:
        found[semconv.REQUEST_STREAM] = True
    if (output := _output_type(body)) is not None:
        found[semconv.OUTPUT_TYPE] = output
    for kind in _part_types(body):
        if (attribute := _MEDIA.get(kind)) is not None:
            found[attribute] = int(found.get(attribute, 0)) + 1  # type: ignore[arg-type]
    return found


_MEDIA = {
    "image_url": semconv.INPUT_IMAGES,
    "input_image": semconv.INPUT_IMAGES,
    "image": semconv.INPUT_IMAGES,
    "input_audio": semconv.INPUT_AUDIO,
    "audio_url": semconv.INPUT_AUDIO,
    "audio": semconv.INPUT_AUDIO,
}


def _part_types(body: Mapping[str, object]) -> Iterator[str]:
    """The types of all parts of all messages."""
    messages = body.get("messages") or body.get("input")
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("content") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str):
                yield kind


def _choices(body: Mapping[str, object]) -> int:
    """How many answers are asked for: `n` for each of several prompts."""
    prompts, n = body.get("prompt"), as_count(body.get("n"))
    count = 1
    if isinstance(prompts, list) and all(isinstance(each, str | list) for each in prompts):
        count = max(1, len(prompts))
    return count if n is None else count * n


def _output_type(body: Mapping[str, object]) -> str | None:
    wanted = body.get("response_format")
    kind = as_text(wanted.get("type")) if isinstance(wanted, Mapping) else None
    return {"json_object": "json", "json_schema": "json", "text": "text"}.get(kind or "")
