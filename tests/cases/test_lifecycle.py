"""Field cases of kind LIF: the life of a request's span on engines and servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry import context as context_api
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse
from starlette.routing import Route

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.live import current_request
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import NAME, attached, complete, opened
from tests.fakes import vllm
from tests.fakes.asgi import CHAT
from tests.fakes.http import served
from tests.fakes.vllm import AsyncLLM, SamplingParams

CANCELLED = "asyncio.exceptions.CancelledError"
CHUNK = b"data: x\n\n"


def requests(captured: CapturedTelemetry) -> list[str]:
    """The names of all request spans."""
    return [each.name for each in captured.spans if semconv.SIDE in each.attributes]


class TestTracedTwice:
    """D-LIF-01: the same call is traced twice."""

    @pytest.fixture
    def engine_type(
        self, monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry
    ) -> type[AsyncLLM]:
        """An engine class, instrumented twice."""
        fresh = vllm.installed(monkeypatch)
        otel_llm.instrument(**captured.providers)
        otel_llm.instrument(**captured.providers)
        return fresh

    async def ask(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """One call of the engine inside one request."""
        live = opened(captured)
        with attached(live.context):
            async for _ in engine.generate("hi", SamplingParams(), "r"):
                pass
        live.finish()

    async def test_a_instrument_twice(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM], clock: ManualClock
    ) -> None:
        """One span, one sample per metric and series."""
        await self.ask(captured, engine_type(clock))
        assert requests(captured) == [NAME]
        for name in (semconv.SERVER_DURATION, semconv.SERVER_TTFT, semconv.PHASE_DURATION):
            assert {1} == {each.count for each in captured.points(name)}

    async def test_a_uninstrument_once(self, engine_type: type[AsyncLLM]) -> None:
        """The original is back."""
        otel_llm.uninstrument()
        assert vars(AsyncLLM)["generate"] is vars(engine_type)["generate"]

    async def test_b_subclass_and_base(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM], clock: ManualClock
    ) -> None:
        """A hierarchy that calls its base is one call; tokens are not doubled."""

        class Derived(engine_type):  # type: ignore[misc, valid-type]
            """An engine that adds something to its base."""

            async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async for output in super().generate(*args, **kwargs):
                    yield output

        await self.ask(captured, Derived(clock))
        assert requests(captured) == [NAME]
        assert captured.span(NAME).attributes[semconv.OUTPUT_TOKENS] == 4


class TestCancellation:
    """D-LIF-04: a cancelled task."""

    @pytest.fixture(autouse=True)
    def in_force(self, captured: CapturedTelemetry) -> None:
        """Telemetry in memory."""
        config.RUNTIME.telemetry = captured.telemetry

    def check(self, captured: CapturedTelemetry, calls: int = 1) -> None:
        """Ended once each, cancelled on span and metric, not OK, and no context left behind."""
        found = [each for each in captured.spans if semconv.SIDE in each.attributes]
        assert [CANCELLED] * calls == [each.attributes[semconv.ERROR_TYPE] for each in found]
        assert {StatusCode.ERROR} == {each.status.status_code for each in found}
        (point,) = captured.points("gen_ai.client.operation.duration")
        assert (calls, CANCELLED) == (point.count, point.attributes[semconv.ERROR_TYPE])

    async def call(self) -> None:
        """A call that is not answered."""
        async with otel_llm.trace_request("chat", provider="demo", side="client") as r:
            with r.active():
                await asyncio.Event().wait()

    async def test_a_wait_for(self, captured: CapturedTelemetry) -> None:
        """A timeout around a plain call."""
        before = context_api.get_current()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.call(), 0.01)
        assert before is context_api.get_current()
        self.check(captured)

    async def test_b_between_two_chunks(self, captured: CapturedTelemetry) -> None:
        """The task that reads a stream is cancelled while it waits."""
        read = asyncio.Event()

        async def chunks() -> AsyncIterator[str]:
            yield "one"
            await asyncio.Event().wait()

        async def reader() -> None:
            async with otel_llm.trace_request("chat", provider="demo", side="client") as r:
                async for _ in r.stream(chunks()):
                    read.set()

        task = asyncio.create_task(reader())
        await read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.check(captured)

    async def test_c_a_group(self, captured: CapturedTelemetry) -> None:
        """Every member of a group that fails."""

        async def fail() -> None:
            await asyncio.sleep(0)
            raise LookupError

        async def group() -> None:
            async with asyncio.TaskGroup() as members:
                for work in (self.call(), self.call(), fail()):
                    members.create_task(work)

        with pytest.raises(ExceptionGroup):
            await group()
        self.check(captured, calls=2)


class TestServerStream:
    """D-LIF-05: a server's span around a reply of 500 chunks; times are a fifth of the case's."""

    CHUNKS = 500
    EVERY = 0.002
    BACKGROUND = 2.0

    @pytest.fixture
    def captured(self) -> CapturedTelemetry:
        """Telemetry on the clocks of this process."""
        return captured_telemetry()

    def application(self, captured: CapturedTelemetry) -> InferenceMiddleware:
        """A streaming route with work in the background, and the middleware around it."""

        async def chunks() -> AsyncIterator[bytes]:
            live = current_request()
            assert live is not None
            lane = live.recorder.lane()
            for _ in range(self.CHUNKS):
                await asyncio.sleep(self.EVERY)
                lane.stamps.append(live.recorder.clock.monotonic_ns())
                yield CHUNK
            live.recorder.finish_reasons = ("stop",)

        async def chat(_request: Any) -> StreamingResponse:
            later = BackgroundTask(self.background)
            return StreamingResponse(chunks(), media_type="text/event-stream", background=later)

        routes = [Route(CHAT, chat, methods=["POST"])]
        return InferenceMiddleware(Starlette(routes=routes), captured.telemetry)

    async def background(self) -> None:
        """Work after the reply; the test does not wait for it."""
        self.began_background = asyncio.get_running_loop().time()
        await asyncio.sleep(0.05)

    async def test_to_its_end(self, captured: CapturedTelemetry) -> None:
        """The span lasts as long as the stream, and its size does not grow with it."""
        asked = {"model": "tiny", "stream": True}
        loop = asyncio.get_running_loop()
        async with served(self.application(captured)) as url, httpx.AsyncClient() as client:
            began = loop.time()
            answer = await client.post(url + CHAT, json=asked)
            await _until(lambda: bool(requests(captured)))
        assert answer.content == CHUNK * self.CHUNKS
        span = captured.span(NAME)
        seconds = span.attributes[semconv.E2E_US] / 1e6
        stream = self.began_background - began
        assert 0.95 * self.CHUNKS * self.EVERY <= seconds <= stream
        assert span.attributes[semconv.OUTCOME] == "ok"
        assert len(captured.spans) <= 10
        assert sum(len(each.events) for each in captured.spans) <= 128

    async def test_the_client_leaves(self, captured: CapturedTelemetry) -> None:
        """Ended within a second, incomplete, and the tokens that came are counted."""
        asked = {"model": "tiny", "stream": True}
        async with served(self.application(captured)) as url, httpx.AsyncClient() as client:
            async with client.stream("POST", url + CHAT, json=asked) as answer:
                pieces = answer.aiter_bytes(len(CHUNK))
                for _ in range(100):
                    await anext(pieces)
            await asyncio.wait_for(_until(lambda: bool(requests(captured))), 1)
        found = captured.span(NAME).attributes
        assert (found[semconv.OUTCOME], found[semconv.INCOMPLETE]) == ("cancelled", True)
        assert found[semconv.E2E_US] > 100 * self.EVERY * 1e6


async def _until(true: Any) -> None:
    while not true():  # noqa: ASYNC110 - exporters give no signal
        await asyncio.sleep(0.001)


def test_what_ends_twice_is_exported_once(captured: CapturedTelemetry) -> None:
    """The rule behind all of these cases."""
    live = complete(opened(captured))
    for end in (live.finish, live.abandon, live.finish):
        end()
    assert requests(captured) == [NAME]
