"""OpenAI's chat, completions and embeddings, and what a real vLLM says there."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm.replies import CHAT, Failure, dialect_of
from otel_llm.timeline import Outcome, Phase, Tokens
from tests.replies.builders import read, recorded, reply_of, resolved, text_of, token


def chunk(delta: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    choices = [{"index": 0, "delta": delta or {}, **choice}]
    return {"object": "chat.completion.chunk", "choices": choices}


def call(**function: Any) -> dict[str, Any]:
    """A delta with a piece of a tool call."""
    return {"tool_calls": [{"index": 0, "function": function}]}


@pytest.mark.parametrize(
    "item",
    [
        chunk({"content": " "}),
        chunk({"content": "", "reasoning_content": "hm"}),
        chunk({"content": None, "reasoning": "hm"}),
        chunk({"refusal": "no"}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
        chunk(call(name="look")),
        chunk(call(arguments="{")),
        chunk({"function_call": {"arguments": "{"}}),
        chunk({"audio": {"data": "UklGRg=="}}),
        chunk({"content": ""}, token_ids=[7]),
        {"choices": [{"index": 0, "text": "\n"}]},
        {"choices": [{"index": 0, "text": "", "token_ids": [7]}]},
        {"choices": [{"delta": {}}, {"delta": {"content": "b"}}]},
    ],
)
def test_tokens(item: object) -> None:
    """A piece in any channel of any choice is a token."""
    assert token(item)


@pytest.mark.parametrize(
    "item",
    [
        chunk({"role": "assistant"}),
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": None, "tool_calls": []}),
        chunk(call(name="", arguments="")),
        chunk({}, finish_reason="stop"),
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [{"index": 0, "text": ""}]},
        {"choices": None, "object": "chat.completion.chunk"},
        {"object": "list", "data": [{"embedding": [0.5]}]},
    ],
)
def test_no_tokens(item: object) -> None:
    """Roles, empty pieces, finish reasons, usage and embeddings are none."""
    assert not token(item)


def test_names() -> None:
    """Id, model and fingerprint are the reply's own."""
    reply = read({"id": "c-1", "model": "m", "system_fingerprint": "fp_x", "choices": []})
    assert (reply.response_id, reply.model, reply.fingerprint) == ("c-1", "m", "fp_x")


def test_names_that_are_none() -> None:
    """A later chunk without names leaves those that came."""
    reply = reply_of([{"id": "c-1", "choices": []}, {"id": "", "model": 7, "choices": []}])
    assert (reply.response_id, reply.model) == ("c-1", None)


def test_several_choices() -> None:
    """Finish reasons are in the order of the choices, whichever ended first."""
    chunks = [
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    assert resolved(chunks).finish_reasons == ("stop", "length")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 0}, {"input": 5, "output": 0}),
        ({"prompt_tokens": 0, "completion_tokens": 0}, {}),
        ({"prompt_tokens": None, "completion_tokens": "x"}, {}),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 3}, {"input": 5, "cached": 3}),
        ({"input_tokens": 5, "cached_tokens": 3}, {"input": 5, "cached": 3}),
        ({"completion_tokens": 5, "reasoning_tokens": 3}, {"output": 5, "reasoning": 3}),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}, "cached_tokens": 3},
            {"input": 5, "cached": 0},
        ),
    ],
)
def test_usage(usage: dict[str, Any], expected: dict[str, int]) -> None:
    """Counts have one name each, wherever servers put them; nothing but zeros is a placeholder."""
    assert expected == read({"choices": [], "usage": usage}).usage


def test_embeddings() -> None:
    """A list of embeddings has input tokens only, and is complete."""
    data = [{"object": "embedding", "embedding": [0.5]}]
    usage = {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}
    reply = read({"object": "list", "data": data, "model": "e", "usage": usage})
    assert (reply.usage, reply.end_record, reply.model) == ({"input": 4}, True, "e")


def test_messages() -> None:
    """An answer has the conventions' form: reasoning, text and calls, and why it ended."""
    reply = reply_of(
        [
            chunk({"role": "assistant", "reasoning": "hm"}),
            chunk({"content": "Wait"}),
            chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look"}}]}),
            chunk(call(arguments='{"q": 1}'), finish_reason="tool_calls"),
        ]
    )
    parts = [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "Wait"},
        {"type": "tool_call", "name": "look", "id": "c", "arguments": {"q": 1}},
    ]
    message = {"role": "assistant", "parts": parts, "finish_reason": "tool_calls"}
    assert [message] == reply.messages()


def test_nothing_is_kept_unless_asked_for() -> None:
    """Without capture neither text nor calls of a reply are held."""
    reply = read(chunk({"content": "secret", **call(name="look")}), capture=False)
    assert (reply.messages(), reply.tool_calls, reply.captured) == ([], [], None)


class TestRecorded:
    """Replies of vLLM 0.32, byte for byte."""

    def test_a_stream(self) -> None:
        """The role chunk is no token; five others are; counts come at the end."""
        found = recorded("chat_stream.body")
        assert [False, *[True] * 5] == [token(item) for item in found[:6]]
        timeline = resolved(found)
        assert timeline.tokens == Tokens(input=6, output=5)
        assert (timeline.outcome, timeline.finish_reasons) == (Outcome.OK, ("length",))

    def test_the_engine(self) -> None:
        """The fingerprint tells who answered."""
        reply = reply_of(recorded("chat_stream.body"))
        assert (reply.server_engine, text_of(reply)[0]) == ("vllm", " trac" * 5)

    @pytest.mark.parametrize(
        ("name", "queue", "prefill", "decode"),
        [
            ("chat_metrics.body", 31_968, 14_114_361, 22_117_051),
            ("chat_stream_metrics.body", 26_760, 5_126_892, 13_438_940),
        ],
    )
    def test_metrics(self, name: str, queue: int, prefill: int, decode: int) -> None:
        """The time to first token is without the queue, and so is prefill."""
        expected = {Phase.QUEUE: queue, Phase.PREFILL: prefill, Phase.DECODE: decode}
        assert expected == reply_of(recorded(name)).reported

    def test_several_sequences(self) -> None:
        """Three choices have three finish reasons and one usage."""
        reply = reply_of(recorded("completions_n3.body"))
        assert reply.finish_reasons == {0: "length", 1: "length", 2: "length"}
        assert (reply.usage, reply.server_engine) == ({"input": 2, "output": 15}, "vllm")

    def test_a_refusal(self) -> None:
        """An error body has a type, a status, and no message."""
        (item,) = recorded("chat_invalid.body")
        assert dialect_of(item) is CHAT
        assert Failure("BadRequestError", 400, refused=True) == read(item).error
