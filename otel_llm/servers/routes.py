"""Which HTTP routes are inference requests, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """One inference route: its low-cardinality path and GenAI operation.

    `json` is False where the body is not JSON (uploads) and so tells no model before it is read.
    """

    path: str
    operation: str
    json: bool = True


ROUTES = (
    Route("/v1/chat/completions", "chat"),
    Route("/v1/completions", "text_completion"),
    Route("/v1/responses", "chat"),
    Route("/v1/messages", "chat"),
    Route("/v1/embeddings", "embeddings"),
    Route("/v1/audio/transcriptions", "transcription", json=False),
    Route("/v1/audio/translations", "translation", json=False),
    Route("/v1/rerank", "rerank"),
    Route("/v2/rerank", "rerank"),
    Route("/rerank", "rerank"),
    Route("/v1/score", "score"),
    Route("/score", "score"),
    Route("/classify", "classify"),
    Route("/pooling", "pooling"),
    Route("/v1/chat/completions/batch", "chat"),
    Route("/cohere/v2/chat", "chat"),
    Route("/v2/embed", "embeddings"),
    Route("/inference/v1/generate", "text_completion"),
    Route("/api/chat", "chat"),
    Route("/api/generate", "text_completion"),
    Route("/generate_stream", "text_completion"),
    Route("/generate", "text_completion"),
)
"""The first that a path ends with counts, hence longer ones before those they end with."""


def route_of(method: str, path: str) -> Route | None:
    """The inference route of a request, also below a prefix (`/llm/v1/completions`), or None."""
    if method != "POST":
        return None
    path = path.rstrip("/")
    return next((route for route in ROUTES if path.endswith(route.path)), None)
