"""Nothing of what a client asks, or is answered, is in the bytes that leave; see `test_leaks`.

The model's name, and the ids and names that a reply gives itself, are written on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import ollama
import openai
import pytest

import otel_llm
from otel_llm import semconv
from tests.conformance.test_leaks import (
    BESIDES,
    CONTENT,
    HEADERS,
    MARK,
    MODEL,
    STOP,
    Wire,
    logged,
    marked,
    wired,
)
from tests.fakes.ollama_server import base, line, message
from tests.fakes.openai_server import DONE, JSON, Answer, chunk, completion, event, serving

__all__ = ["logged", "wired"]

SENT = {k: v for k, v in HEADERS.items() if k not in {"host", "traceparent", "authorization"}}
CALL = {"index": 0, "id": "c", "function": {"name": marked("tool"), "arguments": marked("args")}}
SPEAKS = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": marked("thought")}),
    chunk({"content": marked("content")}),
    chunk({"refusal": marked("refusal")}),
    chunk({"tool_calls": [CALL]}),
)
ERROR = {"message": marked("message"), "type": "server_error", "code": marked("no word")}
"""A type is written if it is a word."""
ANSWERS = {
    "stream": Answer((*SPEAKS, chunk({}, "stop"), DONE)),
    "error event": Answer((*SPEAKS, event({"error": ERROR}))),
    "error event at once": Answer((event({"error": ERROR, "error_type": marked("kind of it")}),)),
    "no json": Answer((*SPEAKS, f"data: {marked('half')}\n\n".encode(), DONE)),
    "cut": Answer(SPEAKS, cut=True),
    "refused": Answer((json.dumps({"error": ERROR}).encode(),), 400, JSON),
    "broken": Answer((marked("body").encode(),), 500, "text/plain"),
}
PLAIN = completion()
PLAIN["choices"][0]["message"] = {"role": "assistant", "content": marked("content")}


def instrumented(wire: Wire) -> None:
    """The clients write to *wire*."""
    otel_llm.instrument(engines=["openai", "ollama"], **providers(wire))


def providers(wire: Wire) -> dict[str, Any]:
    """Arguments of `instrument`."""
    return {"tracer_provider": wire.tracers, "meter_provider": wire.meters}


def client_of(url: str) -> openai.OpenAI:
    """A client that asks once."""
    return openai.OpenAI(base_url=url, api_key=marked("api-key"), max_retries=0)


def checked(wire: Wire) -> None:
    """The request has left, and no mark with it."""
    left = wire.left()
    assert semconv.OUTCOME.encode() in left
    assert MARK.encode() not in left


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_of_the_openai_client(wired: Callable[..., Wire], answer: Answer) -> None:
    """Prompt, tools, headers, answer, thought, call, error: none of it."""
    wire = wired()
    instrumented(wire)
    with serving(answer) as server, suppress(openai.OpenAIError, httpx.HTTPError, ValueError):
        body = {"model": MODEL, **CONTENT, **STOP, "stream": True}
        with client_of(server.url) as client:
            for _ in client.chat.completions.create(**body, extra_headers=SENT, extra_body=BESIDES):
                pass
    checked(wire)


@pytest.mark.parametrize("raw", [False, True])
def test_a_plain_reply_of_the_openai_client(wired: Callable[..., Wire], raw: bool) -> None:
    """Nor of a reply in one piece, its headers among it."""
    wire = wired()
    instrumented(wire)
    reply = Answer((json.dumps(PLAIN).encode(),), 200, JSON, {"x-reason": marked("header")})
    with serving(reply) as server, client_of(server.url) as client:
        chat = client.chat.completions
        create = chat.with_raw_response.create if raw else chat.create
        create(model=MODEL, **CONTENT, **STOP, extra_headers=SENT)
    checked(wire)


@pytest.mark.parametrize("failing", [False, True])
def test_ollama(wired: Callable[..., Wire], failing: bool) -> None:
    """Nor of Ollama's lines."""
    wire = wired()
    instrumented(wire)
    spoken = line(message=message(marked("content"), thinking=marked("thought")), done=False)
    error = json.dumps({"error": marked("runner crashed")}).encode() + b"\n"
    end = error if failing else line(message=message(), done=True, done_reason="stop")
    with serving(Answer((spoken, end), content_type="application/x-ndjson")) as server:
        asked = [{"role": "user", "content": marked("prompt")}]
        options = {"stop": [marked("stop")]}
        with suppress(ollama.ResponseError), ollama.Client(base(server), headers=SENT) as client:
            list(client.chat(MODEL, asked, stream=True, options=options))
    checked(wire)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_client_without_a_library(wired: Callable[..., Wire], answer: Answer) -> None:
    """Nor where bytes are read; a record that is no JSON is only counted."""
    wire = wired()
    with serving(answer) as server, suppress(httpx.HTTPError):
        request = otel_llm.trace_request("chat", model=MODEL, provider="vllm", side="client")
        body = {"model": MODEL, **CONTENT, **BESIDES}
        url = f"{server.url}/chat/completions?key={marked('query')}"
        with request as r, httpx.stream("POST", url, json=body, headers=r.headers(SENT)) as reply:
            for _ in r.response(reply).iter_lines():
                pass
    checked(wire)


def test_the_search_would_find_it(wired: Callable[..., Wire]) -> None:
    """With content on the answer leaves, which is how the others could fail."""
    wire = wired(capture_content=True)
    instrumented(wire)
    with serving(ANSWERS["stream"]) as server, client_of(server.url) as client:
        list(client.chat.completions.create(model=MODEL, **CONTENT, stream=True))
    assert b"leakmark-content" in wire.left()
    assert b"leakmark-prompt" in wire.left()
