"""Which requests are inference requests."""

from __future__ import annotations

import pytest

from otel_llm.servers.routes import ROUTES, route_of


@pytest.mark.parametrize(
    ("path", "route", "operation"),
    [
        ("/v1/chat/completions", "/v1/chat/completions", "chat"),
        ("/v1/completions", "/v1/completions", "text_completion"),
        ("/v1/responses", "/v1/responses", "chat"),
        ("/v1/messages", "/v1/messages", "chat"),
        ("/v1/embeddings", "/v1/embeddings", "embeddings"),
        ("/v1/rerank", "/v1/rerank", "rerank"),
        ("/v1/score", "/v1/score", "score"),
        ("/pooling", "/pooling", "pooling"),
        ("/v1/audio/transcriptions", "/v1/audio/transcriptions", "transcription"),
        ("/v1/audio/translations", "/v1/audio/translations", "translation"),
        ("/v2/rerank", "/v2/rerank", "rerank"),
        ("/rerank", "/rerank", "rerank"),
        ("/score", "/score", "score"),
        ("/classify", "/classify", "classify"),
        ("/v1/chat/completions/batch", "/v1/chat/completions/batch", "chat"),
        ("/cohere/v2/chat", "/cohere/v2/chat", "chat"),
        ("/v2/embed", "/v2/embed", "embeddings"),
        ("/inference/v1/generate", "/inference/v1/generate", "text_completion"),
        ("/api/chat", "/api/chat", "chat"),
        ("/api/generate", "/api/generate", "text_completion"),
        ("/generate", "/generate", "text_completion"),
        ("/generate_stream", "/generate_stream", "text_completion"),
        ("/llm/v1/rerank", "/v1/rerank", "rerank"),
        ("/llm/v1/completions", "/v1/completions", "text_completion"),
        ("/v1/completions/", "/v1/completions", "text_completion"),
    ],
)
def test_inference(path: str, route: str, operation: str) -> None:
    """Route and operation, also below a prefix; the route holds nothing of the path's variety."""
    found = route_of("POST", path)
    assert found is not None
    assert (route, operation) == (found.path, found.operation)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("OPTIONS", "/v1/chat/completions"),
        ("", "/v1/chat/completions"),
        ("POST", "/v1/models"),
        ("POST", "/tokenize"),
        ("POST", "/xv1/completions"),
        ("POST", "/v1/completions/abc"),
        ("POST", "/v1/chat/completions/render"),
        ("POST", "/v1/chat/completions/batch/abc"),
        ("POST", "/myscore"),
        ("GET", "/rerank"),
        ("POST", "/v1/responses/abc/cancel"),
        ("POST", "/"),
        ("POST", ""),
    ],
)
def test_others(method: str, path: str) -> None:
    """Everything else is none."""
    assert route_of(method, path) is None


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_uploads_are_not_json(path: str) -> None:
    """Their bodies are not read ahead."""
    found = route_of("POST", path)
    assert found is not None
    assert not found.json


def test_longer_paths_come_first() -> None:
    """Of two routes of which one ends with the other the longer one is found."""
    assert [each.path for each in ROUTES] == [
        route.path for each in ROUTES if (route := route_of("POST", each.path))
    ]
