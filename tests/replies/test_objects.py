"""The objects that client libraries make of replies say the same as their JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otel_llm.replies import Reply, dialect_of
from tests.replies.builders import items, recorded, take, text_of
from tests.replies.test_dialects import TestMessages


def facts(found: list[Any]) -> dict[str, Any]:
    """Everything that is known of a reply, and which of its items carry tokens."""
    reply = Reply(capture=True)
    tokens = [take(reply, item) for item in found]
    names = [name for name in Reply.__slots__ if not name.startswith("_") and name != "captured"]
    known = {name: getattr(reply, name) for name in names}
    return {**known, "messages": reply.messages(), "tokens": tokens, "text": text_of(reply)}


def assert_same(found: list[Any], make: Callable[[Any], Any]) -> None:
    """Objects made of the items that are dicts or lists give the same facts."""
    made = [make(item) if isinstance(item, dict | list) else item for item in found]
    assert any(type(item) not in (dict, list) for item in made)
    assert facts(found) == facts(made)


def openai(kind: str) -> Callable[[Any], Any]:
    """What makes the objects of the OpenAI library."""
    types = pytest.importorskip("openai.types")
    models = pytest.importorskip("openai._models")
    path = kind.split(".")
    for name in path[:-1]:
        types = getattr(types, name)
    return lambda item: models.construct_type(value=item, type_=getattr(types, path[-1]))


CHUNKS = "chat.ChatCompletionChunk"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chat_stream.body", CHUNKS),
        ("chat_stream_metrics.body", CHUNKS),
        ("chat_metrics.body", "chat.ChatCompletion"),
        ("completions_n3.body", "Completion"),
        ("responses_stream.body", "responses.ResponseStreamEvent"),
    ],
)
def test_openai_of_a_recorded_reply(name: str, kind: str) -> None:
    """Replies of a real vLLM, timings included."""
    assert_same(recorded(name), openai(kind))


@pytest.mark.parametrize(
    "name",
    ["D-END-03.sse", "D-USE-05.sse", "D-USE-06-a.sse", "D-USE-06-c.sse"],
)
def test_openai_of_a_case(name: str) -> None:
    """Aborts, running usage and tool calls."""
    assert_same(items(name), openai(CHUNKS))


def test_openai_of_other_engines() -> None:
    """Fields that the library does not know are kept, and read."""
    choice = {"index": 0, "delta": {"content": "a", "reasoning": "b"}, "matched_stop": None}
    item = {"object": "chat.completion.chunk", "choices": [choice], "timings": {"prompt_ms": 2.5}}
    assert_same([item, {**item, "nvext": {"timing": {"prefill_time_ms": 3}}}], openai(CHUNKS))


def test_openai_of_embeddings() -> None:
    """A list of embeddings."""
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    item = {"object": "list", "model": "e", "data": data, "usage": {"prompt_tokens": 4}}
    assert_same([item], openai("CreateEmbeddingResponse"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("D-OLL-01-a.ndjson", "ChatResponse"),
        ("D-OLL-01-b.ndjson", "ChatResponse"),
        ("D-OLL-04.ndjson", "GenerateResponse"),
    ],
)
def test_ollama(name: str, kind: str) -> None:
    """Tool calls, counts and durations."""
    ollama = pytest.importorskip("ollama")
    assert_same(items(name), lambda item: getattr(ollama, kind)(**item))


def test_ollama_of_embeddings() -> None:
    """Vectors with a count and durations."""
    ollama = pytest.importorskip("ollama")
    item = {"model": "m", "embeddings": [[0.5]], "total_duration": 9, "prompt_eval_count": 4}
    assert_same([item], lambda item: ollama.EmbedResponse(**item))


def hub(kind: str) -> Callable[[Any], Any]:
    """What makes the objects of huggingface_hub."""
    library = pytest.importorskip("huggingface_hub")
    return lambda item: getattr(library, kind).parse_obj_as_instance(item)


def test_hub_of_generated_tokens() -> None:
    """TGI's own token events."""
    assert_same(items("D-FRM-04.sse"), hub("TextGenerationStreamOutput"))


def test_hub_of_a_generated_text() -> None:
    """TGI's own answer, with details."""
    details = {"finish_reason": "length", "generated_tokens": 3, "prefill": [], "tokens": []}
    item = {"generated_text": "a b c", "details": details}
    assert_same([item], hub("TextGenerationOutput"))


def test_hub_of_chat() -> None:
    """Chunks with fields that the library does not know."""
    assert_same(recorded("chat_stream_metrics.body"), hub("ChatCompletionStreamOutput"))


def test_plain_objects() -> None:
    """Any object with attributes will do, such as those of Anthropic's library."""

    class Thing:
        def __init__(self, fields: dict[str, Any]) -> None:
            for name, value in fields.items():
                setattr(self, name, Thing(value) if isinstance(value, dict) else value)

    assert_same(list(TestMessages.STREAM), Thing)


class Hostile:
    """An object that raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_hostile_objects() -> None:
    """An object that raises has no dialect, and as a part of a reply says nothing."""
    assert dialect_of(Hostile()) is None
    choice = {"index": Hostile(), "delta": Hostile(), "finish_reason": Hostile()}
    assert facts([{"id": Hostile(), "choices": [choice, Hostile()], "usage": Hostile()}]) == (
        facts([{"choices": [{}, {}]}])
    )
