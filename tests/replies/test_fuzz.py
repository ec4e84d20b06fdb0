"""Whatever JSON a server sends, no reader raises, and no fact has a wrong type."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm.emit.values import cleaned
from otel_llm.replies import DIALECTS, Dialect, Reply, dialect_of, engine_of_models, failure_in
from otel_llm.testing import ManualClock
from otel_llm.timeline import Outcome, Phase, Timeline, resolve
from tests.replies.builders import client

_NAMES = """
arguments cache_n cached_tokens choices code completion_tokens content content_block created_at
data delta details done done_reason dp_rank embeddings error error_type eval_count eval_duration
finish_reason finish_reasons forward_entry_time function function_call generated_text
generated_tokens generation_time_ms id index input input_length input_tokens item load_duration
message meta_info metrics model name num_retractions nvext object output output_index
output_tokens owned_by partial_json predicted_ms prefill prefill_finished_time prompt_ms
prompt_tokens prompt_tokens_details queue_time queue_time_ms reasoning response stop stop_reason
stop_type status system_fingerprint text thinking timing timings token token_ids tokens
tokens_evaluated tool_calls total_duration ttft_ms total_time_ms type usage
"""
_WORDS = """
assistant chat.completion chat.completion.chunk completed content_block_delta content_block_start
error failed incomplete list message message_delta message_start message_stop response
response.completed response.created response.function_call_arguments.delta
response.output_item.added response.output_text.delta stop text_completion vllm
"""
NAMES, WORDS = _NAMES.split(), _WORDS.split()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 600),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud83e", "{", '{"a":1}', "2026-05-04T08:15:37.5Z"]),
    st.sampled_from(WORDS),
)
KEYS = st.one_of(st.sampled_from(NAMES), st.text(max_size=3))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=10,
)  # fmt: skip
EXTRAS = st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4)
SHAPES = (
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}], "usage": {}},
    {"choices": [{"message": {"tool_calls": [{"function": {}}]}}], "timings": {}, "metrics": {}},
    {"choices": [{"text": ""}], "nvext": {"timing": {}}},
    {"type": "response.completed", "response": {"status": "", "output": [{}], "usage": {}}},
    {"type": "response.output_item.added", "item": {}},
    {"type": "message_start", "message": {"usage": {}}},
    {"type": "content_block_delta", "delta": {}},
    {"type": "message", "content": [{}], "usage": {}},
    {"done": True, "message": {"tool_calls": [{"function": {}}]}},
    {"token": {"id": 1}, "generated_text": "", "details": {}},
    {"text": "", "meta_info": {"finish_reason": {}}},
    {"content": "", "stop": True, "timings": {}},
    {"error": {}},
)


def damaged(shape: Any) -> st.SearchStrategy[Any]:
    """A reply of this shape with anything in some of its places."""
    whole: st.SearchStrategy[Any] = st.just(shape)
    if isinstance(shape, list):
        whole = st.tuples(*map(damaged, shape)).map(list)
    elif isinstance(shape, dict):
        parts = st.fixed_dictionaries({name: damaged(each) for name, each in shape.items()})
        whole = st.builds(operator.or_, EXTRAS, parts)
    return st.one_of(whole, whole, whole, JSON)


DAMAGED = st.one_of(*map(damaged, SHAPES))


def written(reply: Reply) -> tuple[Timeline, dict[str, Any]]:
    """What becomes of the facts."""
    found: dict[str, Any] = {}
    recorder = client(ManualClock())
    reply.into(recorder, found.update)
    return resolve(recorder.evidence()), found


def assert_sane(reply: Reply) -> None:
    """Every fact has its type."""
    timeline, attributes = written(reply)
    assert all(type(each) is int and each >= 0 for each in reply.usage.values())
    assert all(isinstance(k, Phase) and type(v) is int for k, v in reply.reported.items())
    assert all(type(k) is int and type(v) is str for k, v in reply.finish_reasons.items())
    assert isinstance(timeline.outcome, Outcome)
    assert attributes == cleaned(attributes)
    for attribute in attributes.values():
        if isinstance(attribute, str):
            attribute.encode()
    for message in reply.messages():
        assert isinstance(message["parts"], list)


@settings(max_examples=100)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@given(found=st.lists(DAMAGED, min_size=1, max_size=2))
def test_no_item_raises(dialect: Dialect, found: list[Any]) -> None:
    """Every dialect reads anything, be it its own format or not."""
    reply = Reply(capture=True)
    for item in found:
        assert type(dialect.token(item)) is bool
        assert type(dialect.fits(item)) is bool
        dialect.read(reply, item)
    assert_sane(reply)


@given(DAMAGED)
def test_no_item_raises_when_it_is_recognised(item: Any) -> None:
    """Neither the search for a dialect, nor the reading of errors and models raises."""
    failure, _ = failure_in(item), engine_of_models(item)
    assert failure is None or failure.type.isascii()
    dialect = dialect_of(item)
    if dialect is not None:
        reply = Reply()
        dialect.read(reply, item)
        assert_sane(reply)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["error", "message", "response", "arguments", "content"])
def test_deep_nesting(dialect: Dialect, name: str) -> None:
    """Replies as deep as a parser lets through are read, and deeper ones."""
    deep: Any = "a"
    for _ in range(50_000):
        deep = {name: deep}
    call = {"function": {"name": "n", "arguments": deep}}
    reply = Reply(capture=True)
    for item in (deep, {"message": {"tool_calls": [call]}, "done": True}):
        dialect.token(item)
        dialect.read(reply, item)
    assert_sane(reply)
