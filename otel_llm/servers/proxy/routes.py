"""Inference routes beyond those of `servers.routes`, and what their bodies ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_llm.servers import scope
from otel_llm.servers.proxy.settings import ProxyEngine
from otel_llm.servers.routes import Route, route_of

_LLAMA_CPP = (
    Route("/chat/completions", "chat"),
    Route("/completions", "text_completion"),
    Route("/completion", "text_completion"),
    Route("/infill", "text_completion"),
    Route("/embeddings", "embeddings"),
    Route("/embedding", "embeddings"),
)
_OLLAMA = (Route("/api/embed", "embeddings"), Route("/api/embeddings", "embeddings"))
_TGI = (Route("/invocations", "text_completion"), Route("/", "text_completion"))
_MORE = {
    ProxyEngine.LLAMA_CPP: _LLAMA_CPP,
    ProxyEngine.OLLAMA: _OLLAMA,
    ProxyEngine.TGI: _TGI,
    ProxyEngine.AUTO: (*_OLLAMA, *_LLAMA_CPP),
}
"""For an engine that is not known yet, the paths that no other meaning has."""


def inference_route(engine: ProxyEngine, method: str, path: str) -> Route | None:
    """The inference route of a request to *engine*, or None."""
    if method != "POST":
        return None
    found = route_of(method, path)
    if found is not None:
        return found
    more = _MORE.get(engine, ())
    bare = path.rstrip("/") or "/"
    return next((each for each in more if _ends(bare, each.path)), None)


def _ends(path: str, with_: str) -> bool:
    return path == with_ if with_ == "/" else path.endswith(with_)


PROMPTS = (*scope.PROMPTS, "inputs", "text")
"""The fields of any engine's body that hold what is asked."""
_NAMES = {"max_new_tokens": "max_tokens", "num_predict": "max_tokens", "n_predict": "max_tokens"}


def as_openai(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a body as OpenAI's API calls them.

    TGI and SGLang keep theirs in an object of the body, so does Ollama.
    """
    found: dict[str, Any] = dict(body)
    for nested in ("parameters", "sampling_params", "options"):
        inner = body.get(nested)
        if isinstance(inner, Mapping):
            found = {**inner, **found}
    for theirs, ours in _NAMES.items():
        if theirs in found:
            found.setdefault(ours, found[theirs])
    return found
