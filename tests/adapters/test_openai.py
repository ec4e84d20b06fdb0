"""The OpenAI client library: every way through it is one request, described as it was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import (
    MESSAGES,
    STREAMED,
    WHOLE,
    aclient,
    attributes,
    outcomes,
    request,
    requests,
)
from tests.clients.fixtures import (  # noqa: F401 - fixtures
    aask_fixture,
    ask_fixture,
    captured_fixture,
    made_fixture,
    serve_fixture,
)
from tests.fakes.openai_server import (
    END,
    ROLE,
    Answer,
    OpenAIServer,
    chunk,
    completion,
    recorded,
    stream,
    whole,
    word,
)

Ask = Callable[..., Any]
Serve = Callable[..., OpenAIServer]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]


class Colour(pydantic.BaseModel):
    """What a model shall answer."""

    name: str


def test_a_whole_reply(captured: CapturedTelemetry, made: Ask) -> None:
    """Name, kind, who and where, parameters, and what the reply says of itself."""
    using = made(whole())
    reply = using.chat.completions.create(**WHOLE, temperature=0.5, max_tokens=9, seed=3)
    assert reply.choices[0].message.content == "a token or two"
    span = request(captured)
    assert (span.name, span.kind.name) == ("chat tiny", "CLIENT")
    expected = {
        semconv.SIDE: "client",
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "openai",
        semconv.REQUEST_MODEL: "tiny",
        semconv.RESPONSE_MODEL: "tiny",
        semconv.RESPONSE_ID: "chatcmpl-1",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: using.base_url.port,
        semconv.INPUT_TOKENS: 7,
        semconv.OUTPUT_TOKENS: 5,
        semconv.OUTCOME: "ok",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert expected == {name: span.attributes.get(name) for name in expected}
    assert semconv.TTFT_US not in span.attributes


def test_nothing_of_the_conversation_is_written(captured: CapturedTelemetry, made: Ask) -> None:
    """Neither prompt nor answer nor key."""
    made(whole()).chat.completions.create(**WHOLE)
    written = str([(dict(each.attributes), each.events) for each in captured.spans])
    assert not any(each in written for each in ("'hi'", "a token", "secret"))


def test_a_stream(captured: CapturedTelemetry, ask: Ask) -> None:
    """Phases, windows and usage."""
    assert len(list(ask(stream(5, first=0.01, gap=0.002)))) == 8
    found = attributes(captured)
    for name in (semconv.TTFT_US, semconv.E2E_US, semconv.OUTPUT_TOKENS, semconv.CHUNK_GAP_P50_US):
        assert name in found
    assert captured.tree()[:3] == ["chat tiny", "  llm.first_token", "  llm.decode"]


@pytest.mark.parametrize("name", ["chat_stream", "chat_stream_metrics"])
def test_recorded_streams(captured: CapturedTelemetry, ask: Ask, name: str) -> None:
    """What a real vLLM has sent is recognised as its own."""
    list(ask(recorded(name)))
    found = attributes(captured)
    assert (found[semconv.OUTCOME], found[semconv.ENGINE_NAME]) == ("ok", "vllm")
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (6, 5)


def test_an_engines_own_timings(captured: CapturedTelemetry, ask: Ask) -> None:
    """VLLM's queue, prefill and decode are on the client's span, too."""
    list(ask(recorded("chat_stream_metrics")))
    sources = attributes(captured)[semconv.SOURCES]
    assert "queue=" in sources
    assert "prefill=" in sources


def test_the_engine_is_remembered(captured: CapturedTelemetry, made: Ask) -> None:
    """Once it was recognised at a base URL it is the provider of the next call."""
    using = made(recorded("chat_stream"))
    for _ in range(2):
        list(using.chat.completions.create(**STREAMED))
    providers = [each.attributes[semconv.PROVIDER] for each in requests(captured)]
    assert providers == ["openai", "vllm"]


def test_an_invalid_request(captured: CapturedTelemetry, ask: Ask) -> None:
    """What vLLM refuses is a rejection."""
    with pytest.raises(openai.BadRequestError):
        ask(recorded("chat_invalid"))
    assert outcomes(captured) == ["rejected"]


def test_legacy_completions(captured: CapturedTelemetry, made: Ask) -> None:
    """Three choices in one reply."""
    reply = made(recorded("completions_n3")).completions.create(model="tiny", prompt="a", n=3)
    assert len(reply.choices) == 3
    found = attributes(captured)
    assert (found[semconv.OPERATION], found[semconv.CHOICE_COUNT]) == ("text_completion", 3)
    assert (found[semconv.OUTCOME], found[semconv.OUTPUT_TOKENS]) == ("ok", 15)


def test_choices_that_end_one_by_one(captured: CapturedTelemetry, ask: Ask) -> None:
    """Three choices, each with its own end; those in the middle are read, too."""
    pieces = [chunk({"content": "x"}, index=each) for each in (0, 1, 2)]
    ends = [chunk({}, reason, index) for index, reason in enumerate(("stop", "length", "stop"))]
    more = [chunk({"content": "y"}, index=2)] * 6
    answer = Answer([*pieces, ends[0], *more, ends[1], *more, ends[2], *END[1:]])
    list(ask(answer, n=3))
    found = attributes(captured)
    assert found["gen_ai.response.finish_reasons"] == ("stop", "length", "stop")
    assert found[semconv.OUTCOME] == "ok"


def test_a_choice_that_never_ends(captured: CapturedTelemetry, ask: Ask) -> None:
    """One of two has no finish reason before the body ends."""
    list(ask(Answer([word(), chunk({"content": "x"}, index=1), chunk({}, "stop")]), n=2))
    assert outcomes(captured) == ["error"]


def test_responses_streaming(captured: CapturedTelemetry, made: Ask) -> None:
    """Events of the responses API."""
    using = made(recorded("responses_stream"))
    events = list(using.responses.create(model="tiny", input="hi", stream=True))
    assert events[-1].type == "response.completed"
    found = attributes(captured)
    assert (found[semconv.OPERATION], found[semconv.OUTCOME]) == ("chat", "ok")
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (6, 5)
    assert semconv.TTFT_US in found


def test_responses_stream_helper(captured: CapturedTelemetry, made: Ask) -> None:
    """The helper over the same events."""
    with made(recorded("responses_stream")).responses.stream(model="tiny", input="hi") as events:
        kinds = [each.type for each in events]
        final = events.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.usage.output_tokens == 5
    assert outcomes(captured) == ["ok"]


def test_chat_stream_helper(captured: CapturedTelemetry, made: Ask) -> None:
    """`.stream()` of chat completions."""
    with made(stream(5)).chat.completions.stream(model="tiny", messages=MESSAGES) as events:
        for _ in events:
            pass
        final = events.get_final_completion()
    assert final.usage.completion_tokens == 5
    assert outcomes(captured) == ["ok"]


def test_chat_stream_helper_left(captured: CapturedTelemetry, made: Ask) -> None:
    """The helper's block is left early."""
    with made(stream(200)).chat.completions.stream(model="tiny", messages=MESSAGES) as events:
        next(events)
    assert outcomes(captured) == ["abandoned"]


async def test_async_stream_helper(captured: CapturedTelemetry, serve: Serve) -> None:
    """`.stream()` of an asynchronous client."""
    using = aclient(serve(stream(5)))
    async with using, using.chat.completions.stream(model="tiny", messages=MESSAGES) as events:
        async for _ in events:
            pass
        final = await events.get_final_completion()
    assert final.usage.completion_tokens == 5
    assert outcomes(captured) == ["ok"]


def test_parse(captured: CapturedTelemetry, made: Ask) -> None:
    """`parse` with a pydantic model as the format of the answer."""
    answer = whole(completion(content='{"name": "red"}'))
    parse = made(answer).chat.completions.parse
    reply = parse(**WHOLE, response_format=Colour)
    assert Colour(name="red") == reply.choices[0].message.parsed
    assert outcomes(captured) == ["ok"]
    assert attributes(captured)[semconv.OUTPUT_TYPE] == "json"


def test_tools(captured: CapturedTelemetry, ask: Ask) -> None:
    """The first piece of a tool call is a token, its name without arguments included."""
    call = {"index": 0, "id": "call_1", "type": "function"}
    named = chunk({"tool_calls": [{**call, "function": {"name": "clock", "arguments": ""}}]})
    args = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})
    list(ask(Answer((ROLE, 0.05, named, args, chunk({}, "tool_calls"), *END[1:])), tools=TOOLS))
    found = attributes(captured)
    assert found[semconv.TTFT_US] >= 50_000
    assert found["gen_ai.response.finish_reasons"] == ("tool_calls",)


def test_logprobs(captured: CapturedTelemetry, ask: Ask) -> None:
    """Chunks with log probabilities."""
    item = {"token": " token", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    choice = {
        "index": 0,
        "delta": {"content": " token"},
        "logprobs": {"content": [item]},
        "finish_reason": None,
    }
    first, *_ = ask(Answer((chunk({}, choices=[choice]), *END)), logprobs=True)
    assert first.choices[0].logprobs.content[0].logprob == -0.1
    assert outcomes(captured) == ["ok"]
