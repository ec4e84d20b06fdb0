"""The simulated TGI sends what the fake one sends, which follows the published source."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from otel_llm.simulator import virtual
from tests.fakes import tgi
from tests.fakes.openai_server import Answer
from tests.simulator.serving.harness import URL, app_of
from tests.simulator.serving.masks import masked

ASKED = {"inputs": "How is the sky?", "parameters": {"max_new_tokens": 3, "details": True}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
LONG = {"inputs": "long " * 6_000}


def ask(path: str, body: Any, **serving: Any) -> httpx.Response:
    """The answer of the simulated TGI, whose model stops by itself."""
    return virtual.run(_ask(path, body, serving))


async def _ask(path: str, body: Any, serving: dict[str, Any]) -> httpx.Response:
    clock = virtual.VirtualClock(asyncio.get_running_loop())
    settings = {"model": "acme/tiny", "stop_share": 1.0} | serving
    app = app_of("tgi", clock, serving=settings)
    async with (
        virtual.InProcessTransport(app) as transport,
        httpx.AsyncClient(transport=transport, base_url=URL, timeout=600) as client,
    ):
        if body is None:
            return await client.get(path)
        data = body if isinstance(body, str) else json.dumps(body)
        return await client.post(path, content=data)


def keys(value: Any) -> Any:
    """The names in a JSON value, in their order."""
    if isinstance(value, dict):
        return [(name, keys(each)) for name, each in value.items()]
    return [keys(each) for each in value] if isinstance(value, list) else type(value).__name__


def sent(answer: Answer) -> bytes:
    """All bytes of an answer of the fake."""
    return b"".join(piece for piece in answer.pieces if isinstance(piece, bytes))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", ASKED),
        ("/generate", {"inputs": "hi", "parameters": {"max_new_tokens": 3}}),
        ("/", ASKED),
        ("/v1/chat/completions", CHAT),
    ],
)
def test_a_whole_answer_has_the_fields_of_tgi(path: str, body: dict[str, Any]) -> None:
    """The same names in the same order, and the same headers of times."""
    fake = tgi.answer_to(path, body)
    reply = ask(path, body)
    assert keys(json.loads(sent(fake))) == keys(reply.json())
    assert list(fake.headers) == [name for name in reply.headers if name.startswith("x-")]


def test_a_stream_has_the_bytes_of_tgi() -> None:
    """One event for each token, without a space; the last has the text and the details."""
    fake = tgi.answer_to("/generate_stream", ASKED)
    reply = ask("/generate_stream", ASKED)
    assert masked(sent(fake)) == masked(reply.content)
    assert list(fake.headers) == [name for name in reply.headers if name.startswith("x-")]


def test_a_streamed_chat_has_the_bytes_of_tgi() -> None:
    """One event for each token, the token of the end without text, then usage and the end."""
    events = [tgi.chunk({"role": "assistant", "content": each}) for each in tgi.WORDS[:2]]
    end = tgi.chunk({"role": "assistant", "content": ""}, "stop")
    usage = {"object": "chat.completion.chunk", **tgi.CHAT, "choices": [], "usage": tgi.USAGE}
    expected = b"".join([*events, end, tgi.event(usage), tgi.DONE])
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    assert masked(expected) == masked(ask("/v1/chat/completions", body).content)


def test_a_server_that_is_full_says_so() -> None:
    """429, and in a stream an event under status 200."""
    expected = {"error": "Model is overloaded", "error_type": "overloaded"}
    whole = ask("/generate", ASKED, max_open=0)
    assert (429, expected) == (whole.status_code, whole.json())
    stream = ask("/generate_stream", ASKED, max_open=0)
    told = f"data:{json.dumps(expected, separators=(',', ':'))}\n\n"
    assert (200, told) == (stream.status_code, stream.text)


def test_a_prompt_that_is_too_long_is_refused() -> None:
    """422, with the two numbers and what they must not exceed."""
    reply = ask("/generate", LONG)
    text = (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 6000. "
        "Given: 6001 `inputs` tokens and 100 `max_new_tokens`"
    )
    assert (422, {"error": text, "error_type": "validation"}) == (reply.status_code, reply.json())


def test_a_refused_chat_in_a_stream_says_nothing_but_the_end() -> None:
    """TGI's router drops the error of a streamed chat."""
    body = {**CHAT, "stream": True}
    assert ask("/v1/chat/completions", body, max_open=0).text == "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/health", None, 200),
        ("/info", None, 200),
        ("/v1/models", None, 200),
        ("/nothing", None, 404),
        ("/generate", None, 405),
        ("/generate", '{"inputs": ', 400),
        ("/generate", "{}", 422),
    ],
)
def test_other_routes_answer_with_their_status(path: str, body: Any, status: int) -> None:
    """Small routes, an unknown one, another method, and bodies that cannot be read."""
    assert status == ask(path, body).status_code


def test_a_stream_is_kept_alive() -> None:
    """A comment goes out when nothing has come for fifteen seconds."""
    slow = {"inputs": "hi", "parameters": {"max_new_tokens": 2}}
    assert ask("/generate_stream", slow, speed=1 / 1500).text.startswith(":\n\ndata:")
