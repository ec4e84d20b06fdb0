"""Calls of the OpenAI client, alone and through libraries above it."""

from __future__ import annotations

import asyncio
import importlib
import time
from contextlib import suppress
from typing import Any

import openai

from tests.benchmarks.clients.peers import Peer
from tests.fakes.openai_server import OpenAIServer

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {"model": "tiny", "messages": MESSAGES}
STREAMED = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}


class Calls:
    """The calls, each with the answer that it gets."""

    last_span = ""
    """How the name of the span begins that a peer ends last."""

    def __init__(self, peer: Peer, server: OpenAIServer) -> None:
        self._peer = peer
        library: Any = importlib.import_module(peer.module)
        self.server = server
        options: Any = {"base_url": server.url, "api_key": "secret", "max_retries": 0}
        self._sync = library.OpenAI(**options).chat.completions.create
        self._options, self._library = options, library
        self._run = asyncio.new_event_loop().run_until_complete

    def written(self) -> bool:
        """Whether the last span of a call has ended."""
        assert self._peer.pipeline is not None
        spans = self._peer.pipeline.spans.get_finished_spans()
        return any(each.name.startswith(self.last_span) for each in spans)

    def wait(self) -> None:
        """Wait for the last span of a call, which a thread may write; for some there is none."""
        deadline = time.monotonic() + 5
        while not self.written() and time.monotonic() < deadline:
            time.sleep(0.02)

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

    last_span = "litellm_request"
    left: Any = None  # its threads keep such a stream, for as long as they like

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

    def failed(self) -> None:
        with suppress(Exception):
            self._lite.completion(**self._asked)

    def async_whole(self) -> None:
        async def call() -> None:
            await self._lite.acompletion(**self._asked)
            await asyncio.to_thread(self.wait)  # it logs afterwards, in this loop

        self._run(call())

    def async_streamed(self) -> None:
        async def read() -> None:
            async for _ in await self._lite.acompletion(**self._streamed):
                pass
            await asyncio.to_thread(self.wait)  # it logs afterwards, in this loop

        self._run(read())
