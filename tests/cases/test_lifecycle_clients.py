"""Field cases of kind LIF: the life of a request's span on clients."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import _base_client
from opentelemetry import trace
from opentelemetry.trace import StatusCode

import otel_llm
from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import STREAMED, WHOLE, aclient, client, request, requests, soon
from tests.clients.fixtures import (  # noqa: F401 - fixtures
    aask_fixture,
    ask_fixture,
    captured_fixture,
    serve_fixture,
)
from tests.fakes.openai_server import OpenAIServer, hanging, serving, stream, whole

Ask = Callable[..., Any]
Serve = Callable[..., OpenAIServer]
ROOT = Path(__file__).parents[2]
LONG = stream(200)
CANCELLED = "asyncio.exceptions.CancelledError"
PATCHED = [
    (_base_client.SyncAPIClient, "request"),
    (_base_client.SyncAPIClient, "_process_response"),
    (_base_client.AsyncAPIClient, "request"),
    (_base_client.AsyncAPIClient, "_process_response"),
    (_base_client.BaseClient, "_build_request"),
]


class TestTracedTwice:
    """D-LIF-01: the same call is traced twice."""

    def test_a_instrument_twice(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """One span, and one sample per metric and series."""
        otel_llm.instrument(engines=["openai"], **captured.providers)
        with client(serve(stream())) as using:
            list(using.chat.completions.create(**STREAMED))
        assert len(requests(captured)) == 1
        names = ("gen_ai.client.operation.duration", "gen_ai.client.token.usage")
        for name in (*names, semconv.PHASE_DURATION):
            assert {each.count for each in captured.points(name)} == {1}

    def test_a_uninstrument_once(self, captured: CapturedTelemetry) -> None:
        """The original functions are back, however often they were patched."""
        patched = [vars(kind)[name] for kind, name in PATCHED]
        otel_llm.instrument(engines=["openai"], **captured.providers)
        assert patched == [vars(kind)[name] for kind, name in PATCHED]
        otel_llm.uninstrument()
        restored = [vars(kind)[name] for kind, name in PATCHED]
        assert [each.__wrapped__ for each in patched] == restored

    def test_b_subclass_and_base(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A class and its base are one call; tokens are not doubled."""

        class Mine(openai.OpenAI):
            def request(self, *args: Any, **kwargs: Any) -> Any:
                return super().request(*args, **kwargs)

        server = serve(whole())
        with Mine(base_url=server.url, api_key="secret") as using:
            using.chat.completions.create(**WHOLE)
        assert request(captured).attributes[semconv.OUTPUT_TOKENS] == 5
        tokens = captured.points("gen_ai.client.token.usage")
        assert {each.count for each in tokens} == {1}

    def test_d_an_agents_span_above_two_calls(
        self, captured: CapturedTelemetry, serve: Serve
    ) -> None:
        """Tokens are only on the spans that made the calls."""
        tracer = captured.tracer_provider.get_tracer("agent")
        with client(serve(whole())) as using, tracer.start_as_current_span("invoke_agent"):
            for _ in range(2):
                using.chat.completions.create(**WHOLE)
        assert [each.attributes[semconv.OUTPUT_TOKENS] for each in requests(captured)] == [5, 5]
        assert semconv.OUTPUT_TOKENS not in captured.span("invoke_agent").attributes


class TestDropped:
    """D-LIF-02: a stream that is never iterated, or dropped half way."""

    def ended(self, captured: CapturedTelemetry) -> bool:
        """Whether there is one span, of a stream that was left."""
        assert soon(lambda: bool(requests(captured)))
        found = request(captured).attributes
        return (found[semconv.OUTCOME], found[semconv.INCOMPLETE]) == ("abandoned", True)

    def test_a_unread(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """Deleted unread: nothing of ours keeps it alive."""
        opened = ask(LONG)
        seen = weakref.ref(opened)
        del opened
        gc.collect()
        assert seen() is None
        assert self.ended(captured)

    def test_b_after_one_chunk(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """Deleted after its first chunk."""
        opened = ask(LONG)
        next(opened)
        seen = weakref.ref(opened)
        del opened
        gc.collect()
        assert seen() is None
        assert self.ended(captured)

    def test_after_all_of_it(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """Nothing is kept of one that was read, either."""
        opened = ask(stream())
        list(opened)
        seen = weakref.ref(opened)
        del opened
        gc.collect()
        assert seen() is None
        assert len(requests(captured)) == 1

    async def test_a_async_unread(self, captured: CapturedTelemetry, aask: Ask) -> None:
        """As (a), asynchronous."""
        opened = await aask(LONG)
        seen = weakref.ref(opened)
        del opened
        gc.collect()
        assert seen() is None
        assert self.ended(captured)

    async def test_b_async_after_one_chunk(self, captured: CapturedTelemetry, aask: Ask) -> None:
        """As (b), asynchronous."""
        opened = await aask(LONG)
        await anext(opened)
        seen = weakref.ref(opened)
        del opened
        await asyncio.sleep(0.05)  # the loop closes generators
        gc.collect()
        await asyncio.sleep(0.05)
        assert seen() is None
        assert self.ended(captured)

    @pytest.mark.parametrize("read", [0, 1])
    def test_c_the_process_ends(self, read: int) -> None:
        """The interpreter leaves with the stream open: exported by the flush at its end."""
        with serving(LONG) as server:
            done = subprocess.run(
                [sys.executable, "-m", "tests.clients.exiting", server.url, str(read)],
                cwd=ROOT,
                env={"OTEL_LLM_STRICT": "1", "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split("\n") == ["begun", "chat tiny abandoned", ""]


class TestTransparency:
    """D-LIF-03: the wrapper hides the client's stream API."""

    @classmethod
    def kinds(cls, opened: Any) -> dict[str, tuple[str, bool, bool]]:
        """The type of every public attribute, and whether it is asynchronous."""
        names = (name for name in dir(opened) if not name.startswith("_"))
        return {name: cls.kind(opened, name) for name in names}

    @staticmethod
    def kind(opened: Any, name: str) -> tuple[str, bool, bool]:
        """The kind of one attribute; some raise until the body was read."""
        try:
            value = getattr(opened, name)
        except Exception as error:
            return type(error).__name__, False, False
        is_async = inspect.iscoroutinefunction(value), inspect.isasyncgenfunction(value)
        return type(value).__name__, *is_async

    def test_every_attribute(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """The same names, each of the same kind."""
        with client(serve(stream())) as using:
            watched = using.chat.completions.create(**STREAMED)
            otel_llm.uninstrument()
            plain = using.chat.completions.create(**STREAMED)
            assert self.kinds(plain) == self.kinds(watched)
            assert self.kinds(plain.response) == self.kinds(watched.response)

    async def test_every_async_attribute(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """The same, asynchronous."""
        async with aclient(serve(stream())) as using:
            watched = await using.chat.completions.create(**STREAMED)
            otel_llm.uninstrument()
            plain = await using.chat.completions.create(**STREAMED)
            assert self.kinds(plain) == self.kinds(watched)
            assert self.kinds(plain.response) == self.kinds(watched.response)

    def test_type(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """It passes for the library's own class, by name and by instance check."""
        opened = ask(stream())
        assert isinstance(opened, openai.Stream)
        assert issubclass(type(opened), openai.Stream)
        kind = type(opened)
        assert (kind.__name__, kind.__module__) == ("Stream", "openai")

    def test_headers_and_attributes(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """The response's headers; attributes set by the application stay."""
        opened = ask(stream(headers={"x-request-id": "r1"}))
        assert opened.response.headers["x-request-id"] == "r1"
        opened.mine = 1
        assert (opened.mine, vars(opened)["mine"]) == (1, 1)
        del opened.mine
        assert not hasattr(opened, "mine")

    def test_with_gives_the_object(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """`with` gives the very object, and all of it can be read inside."""
        opened = ask(stream())
        with opened as entered:
            assert entered is opened
            assert len(list(entered)) == 8
        assert request(captured).attributes[semconv.OUTPUT_TOKENS] == 5

    async def test_async_with_gives_the_object(
        self, captured: CapturedTelemetry, aask: Ask
    ) -> None:
        """`async with` gives the very object, and its usage is not lost."""
        opened = await aask(stream())
        async with opened as entered:
            assert entered is opened
            assert len([each async for each in entered]) == 8
        assert request(captured).attributes[semconv.OUTPUT_TOKENS] == 5

    def test_lazy(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """Nothing of the body is read before it is asked for."""
        opened = ask(stream())
        assert not opened.response.is_stream_consumed
        next(opened)
        assert not opened.response.is_closed

    def test_mixed_reading(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """`next` and a loop after it give every chunk once, in order."""
        opened = ask(stream(5))
        chunks = [next(opened), next(opened), *opened]
        assert len(chunks) == 8
        assert chunks[0].choices[0].delta.role == "assistant"
        with pytest.raises(StopIteration):
            next(opened)

    def test_two_loops(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A second loop goes on where the first was left, as without instrumentation."""
        with client(serve(stream(5))) as using:
            watched = self.two_loops(using.chat.completions.create(**STREAMED))
            otel_llm.uninstrument()
            plain = self.two_loops(using.chat.completions.create(**STREAMED))
        assert watched == plain

    @staticmethod
    def two_loops(opened: Any) -> tuple[list[Any], list[Any]]:
        """What two loops over the same stream read, the first of which is left."""
        first = []
        for chunk in opened:
            first.append(chunk.choices)
            if len(first) == 3:
                break
        return first, [chunk.choices for chunk in opened]

    def test_close_twice(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """Closing again does nothing, as with the library alone."""
        opened = ask(stream())
        opened.close()
        opened.close()
        assert len(requests(captured)) == 1


class TestCancellation:
    """D-LIF-04: a cancelled task."""

    def check(self, captured: CapturedTelemetry, calls: int = 1) -> None:
        """Ended once each, cancelled on span and metric, and not OK."""
        found = requests(captured)
        assert [each.attributes[semconv.ERROR_TYPE] for each in found] == [CANCELLED] * calls
        assert {each.status.status_code for each in found} == {StatusCode.ERROR}
        (point,) = captured.points("gen_ai.client.operation.duration")
        assert (point.count, point.attributes[semconv.ERROR_TYPE]) == (calls, CANCELLED)

    async def test_a_wait_for(self, captured: CapturedTelemetry, aask: Ask) -> None:
        """A timeout around a call that is not streamed."""
        before = trace.get_current_span()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aask(whole(headers_after=1), stream=False), 0.1)
        assert trace.get_current_span() is before
        self.check(captured)

    async def test_b_between_two_chunks(self, captured: CapturedTelemetry, aask: Ask) -> None:
        """The task is cancelled while it waits for the next chunk."""
        opened, begun = await aask(hanging()), asyncio.Event()

        async def read() -> None:
            async for _ in opened:
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.check(captured)

    async def test_c_a_group(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """Every member of a group that fails; one reads, one waits for headers."""
        server = serve(hanging(), stream(headers_after=1))

        async def read() -> None:
            async with aclient(server) as using:
                async for _ in await using.chat.completions.create(**STREAMED):
                    pass

        async def fail() -> None:
            await asyncio.sleep(0.2)
            raise LookupError

        async def group() -> None:
            async with asyncio.TaskGroup() as members:
                for work in (read(), read(), fail()):
                    members.create_task(work)

        with pytest.raises(ExceptionGroup) as raised:
            await group()
        assert raised.group_contains(LookupError)
        self.check(captured, calls=2)
