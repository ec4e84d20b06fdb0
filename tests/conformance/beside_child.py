"""Calls of the OpenAI client beside another instrumentation; run in an environment that has it.

    python -m tests.conformance.beside_child PEER first|second

says whether the peer is switched on before ours or after. Prints one JSON object: for each call
the spans, the token metrics' growth, the `traceparent` of each request, and what was logged.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import openai

import otel_llm
from tests.benchmarks.clients.peers import ROWS, Peer, pipeline
from tests.fakes.openai_server import Answer, OpenAIServer, failing, serving, stream, whole

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {"model": "tiny", "messages": MESSAGES}
STREAMED = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}


def nothing(in_memory: bool) -> Peer:
    """No other instrumentation."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    return peer


def http(in_memory: bool) -> Peer:
    """OpenTelemetry's instrumentations of HTTP clients."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    from opentelemetry.instrumentation.httpx import (
        HTTPX2ClientInstrumentor,
        HTTPXClientInstrumentor,
    )
    from opentelemetry.instrumentation.requests import RequestsInstrumentor

    for each in (HTTPXClientInstrumentor, HTTPX2ClientInstrumentor, RequestsInstrumentor):
        each().instrument()
    return peer


def langchain(module: str, name: str) -> Callable[[bool], Peer]:
    """An instrumentation of LangChain."""

    def switch_on(in_memory: bool) -> Peer:
        peer = Peer()
        peer.pipeline = made = pipeline(in_memory)
        instrumentor: Any = getattr(importlib.import_module(module), name)
        instrumentor().instrument(tracer_provider=made.tracers, meter_provider=made.meters)
        return peer

    return switch_on


def litellm(in_memory: bool) -> Peer:
    """LiteLLM's own callback, which writes a span after the call."""
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    import litellm as library
    from litellm.integrations.opentelemetry import OpenTelemetry

    library.callbacks = [OpenTelemetry(tracer_provider=peer.pipeline.tracers)]
    return peer


PEERS: dict[str, Callable[[bool], Peer]] = {
    "nothing": nothing,
    "http": http,
    "openinference-langchain": langchain(
        "openinference.instrumentation.langchain", "LangChainInstrumentor"
    ),
    "openllmetry-langchain": langchain(
        "opentelemetry.instrumentation.langchain", "LangchainInstrumentor"
    ),
    "litellm": litellm,
    **{name: row.switch_on for name, row in ROWS.items()},
}


class Calls:
    """The calls, each with the answer that it gets."""

    def __init__(self, peer: Peer, server: OpenAIServer) -> None:
        library: Any = importlib.import_module(peer.module)
        self.server = server
        options: Any = {"base_url": server.url, "api_key": "secret", "max_retries": 0}
        self._sync = library.OpenAI(**options).chat.completions.create
        self._options, self._library = options, library
        self._run = asyncio.new_event_loop().run_until_complete

    def whole(self) -> None:
        """A reply in one piece."""
        self._sync(**ASKED)

    def streamed(self) -> None:
        """A stream that is read to its end."""
        for _ in self._sync(**STREAMED):
            pass

    def left(self) -> None:
        """A stream that is left."""
        opened = self._sync(**STREAMED)
        for _ in opened:
            break
        opened.close()

    def failed(self) -> None:
        """An error."""
        with suppress(openai.APIStatusError):
            self._sync(**ASKED)

    def async_whole(self) -> None:
        """As `whole`."""
        self._run(self._later(streamed=False))

    def async_streamed(self) -> None:
        """As `streamed`."""
        self._run(self._later(streamed=True))

    async def _later(self, *, streamed: bool) -> None:
        async with self._library.AsyncOpenAI(**self._options) as using:
            if not streamed:
                await using.chat.completions.create(**ASKED)
                return
            async for _ in await using.chat.completions.create(**STREAMED):
                pass


class MoreCalls(Calls):
    """What differs most between versions of the client."""

    def raw(self) -> None:
        """A raw response whose stream is read."""
        with self._library.OpenAI(**self._options) as using:
            for _ in using.chat.completions.with_raw_response.create(**STREAMED).parse():
                pass

    def streaming_bytes(self) -> None:
        """A streaming response whose lines are read."""
        with self._library.OpenAI(**self._options) as using:
            create = using.chat.completions.with_streaming_response.create
            with create(**STREAMED) as raw:
                for _ in raw.iter_lines():
                    pass

    def never_read(self) -> None:
        """A stream that is dropped."""
        self._sync(**STREAMED)

    def retried(self) -> None:
        """An answer at the second attempt."""
        with self._library.OpenAI(**self._options | {"max_retries": 1}) as using:
            using.chat.completions.create(**ASKED)

    def embedded(self) -> None:
        """Embeddings."""
        with self._library.OpenAI(**self._options) as using:
            using.embeddings.create(model="tiny", input="hi", encoding_format="float")


class LangChainCalls(Calls):
    """The same through LangChain."""

    def __init__(self, peer: Peer, server: OpenAIServer) -> None:
        from langchain_openai import ChatOpenAI

        super().__init__(peer, server)
        self._chat = ChatOpenAI(
            base_url=server.url, api_key="secret", model="tiny", max_retries=0, stream_usage=True
        )

    def whole(self) -> None:
        self._chat.invoke("hi")

    def streamed(self) -> None:
        for _ in self._chat.stream("hi"):
            pass

    def left(self) -> None:
        pieces = self._chat.stream("hi")
        next(pieces)
        pieces.close()

    def failed(self) -> None:
        with suppress(openai.APIStatusError):
            self._chat.invoke("hi")

    def async_whole(self) -> None:
        self._run(self._chat.ainvoke("hi"))

    def async_streamed(self) -> None:
        async def read() -> None:
            async for _ in self._chat.astream("hi"):
                pass

        self._run(read())


class LiteLLMCalls(Calls):
    """The same through LiteLLM."""

    def __init__(self, peer: Peer, server: OpenAIServer) -> None:
        import litellm as library

        super().__init__(peer, server)
        self._lite = library
        self._asked = {
            "model": "openai/tiny",
            "messages": MESSAGES,
            "api_base": server.url,
            "api_key": "secret",
            "num_retries": 0,
            "max_retries": 0,
        }
        self._streamed = {
            **self._asked, "stream": True, "stream_options": {"include_usage": True}
        }  # fmt: skip

    def whole(self) -> None:
        self._lite.completion(**self._asked)

    def streamed(self) -> None:
        for _ in self._lite.completion(**self._streamed):
            pass

    def left(self) -> None:
        for _ in self._lite.completion(**self._streamed):
            break

    def failed(self) -> None:
        with suppress(Exception):
            self._lite.completion(**self._asked)

    def async_whole(self) -> None:
        async def call() -> None:
            await self._lite.acompletion(**self._asked)
            await asyncio.sleep(0.5)  # it logs afterwards

        self._run(call())

    def async_streamed(self) -> None:
        async def read() -> None:
            async for _ in await self._lite.acompletion(**self._streamed):
                pass
            await asyncio.sleep(0.5)

        self._run(read())


EMBEDDINGS = {
    "object": "list",
    "model": "tiny",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}
PACED = stream(5, first=0.02, gap=0.002)
BUSY = failing(503, headers={"retry-after-ms": "50"})
ANSWERS: dict[str, list[Answer]] = {
    "whole": [whole()],
    "streamed": [PACED],
    "left": [stream(50, gap=0.005)],
    "failed": [failing(500)],
    "async_whole": [whole()],
    "async_streamed": [PACED],
    "raw": [PACED],
    "streaming_bytes": [PACED],
    "never_read": [PACED],
    "retried": [BUSY, whole()],
    "embedded": [whole(EMBEDDINGS)],
}


def spans(peer: Peer) -> list[dict[str, Any]]:
    """What has ended, as plain values."""
    assert peer.pipeline is not None
    return [
        {
            "name": each.name,
            "scope": each.instrumentation_scope.name,
            "id": f"{each.context.span_id:016x}",
            "parent": f"{each.parent.span_id:016x}" if each.parent else None,
            "attributes": {name: str(value) for name, value in each.attributes.items()},
        }
        for each in peer.pipeline.spans.get_finished_spans()
    ]


def tokens(peer: Peer) -> float:
    """The sum of all that token metrics hold."""
    assert peer.pipeline is not None
    data = peer.pipeline.reader.get_metrics_data()
    return sum(
        point.sum
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.client.token.usage"
        for point in metric.data.data_points
    )


class _Keeping(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{record.name}: {record.getMessage()[:200]}")


def observed(peer: Peer, calls: Calls, name: str, logged: _Keeping) -> dict[str, Any]:
    """One call, and what came of it."""
    assert peer.pipeline is not None
    peer.pipeline.spans.clear()
    logged.records.clear()
    calls.server.asked.clear()
    calls.server.answers[:] = ANSWERS[name]
    before = tokens(peer)
    getattr(calls, name)()
    gc.collect()
    time.sleep(0.3)
    return {
        "spans": spans(peer),
        "tokens": tokens(peer) - before,
        "traceparent": [each.headers.get("traceparent", []) for each in calls.server.asked],
        "logged": list(logged.records),
    }


def main(name: str, order: str) -> None:
    """Switch both on, make the calls, and print what came of them."""
    logged = _Keeping()
    logging.getLogger().addHandler(logged)
    if order == "second":
        otel_llm.instrument(engines=["openai"])
    peer = PEERS[name](True)
    if order == "first":
        otel_llm.instrument(engines=["openai"])
    kinds = {"litellm": LiteLLMCalls, "nothing": MoreCalls}
    kind = LangChainCalls if "langchain" in name else kinds.get(name, Calls)
    with serving(whole()) as server:
        calls = kind(peer, server)
        names = [each for each in ANSWERS if hasattr(calls, each)]
        print(json.dumps({each: observed(peer, calls, each, logged) for each in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
