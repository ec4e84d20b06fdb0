"""Every way to leave a stream of Ollama's client: one span, ended then and there, judged right."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import ollama
import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

import otel_llm
from otel_llm import config, semconv
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.clients.builders import attributes, outcomes, request, requests, soon
from tests.fakes.ollama_server import base, chat, failing, hanging, lines, said, whole
from tests.fakes.openai_server import Answer, serving

ASKED: dict[str, Any] = {"model": "tiny", "messages": []}
LONG = chat(200)
CUT = lines(said(), said(), 0.01, cut=True)
Ask = Callable[..., Any]


@pytest.fixture(name="captured")
def captured_fixture() -> CapturedTelemetry:
    """Telemetry in memory, and Ollama's client patched."""
    captured = captured_telemetry()
    otel_llm.instrument(engines=["ollama"], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return captured


@pytest.fixture(autouse=True)
def surroundings(captured: CapturedTelemetry, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The caller's span is current before and after; one span in all; nothing is logged."""
    tracer = captured.tracer_provider.get_tracer("caller")
    with tracer.start_as_current_span("caller", record_exception=False) as caller:
        yield
        assert trace.get_current_span() is caller
    gc.collect()
    assert [caller.get_span_context().span_id] == [
        each.parent.span_id for each in requests(captured)
    ]
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.fixture(name="ask")
def ask_fixture() -> Iterator[Ask]:
    """A streamed chat of a fresh client whose server answers so."""
    with ExitStack() as stack:

        def call(answer: Answer, *, stream: bool = True, **options: Any) -> Any:
            server = stack.enter_context(serving(answer))
            made = stack.enter_context(ollama.Client(base(server), **options))
            return made.chat(**ASKED, stream=stream)

        yield call


@pytest.fixture(name="aask")
async def aask_fixture() -> AsyncIterator[Ask]:
    """As `ask`, with an asynchronous client."""
    clients = []
    with ExitStack() as stack:

        async def call(answer: Answer, *, stream: bool = True, **options: Any) -> Any:
            server = stack.enter_context(serving(answer))
            made = ollama.AsyncClient(base(server), **options)
            clients.append(made)
            return await made.chat(**ASKED, stream=stream)

        yield call
        for each in clients:
            await each.close()


def ended(captured: CapturedTelemetry, outcome: str, status: StatusCode) -> bool:
    """Whether the one request has ended so."""
    span = request(captured)
    assert (outcome, status) == (span.attributes[semconv.OUTCOME], span.status.status_code)
    return True


def abandoned(captured: CapturedTelemetry) -> bool:
    """Whether the reader has left, and the reply is known to be incomplete."""
    assert attributes(captured)[semconv.INCOMPLETE] is True
    return ended(captured, "abandoned", StatusCode.UNSET)


def failed(captured: CapturedTelemetry, error_type: str) -> bool:
    """Whether the request is one that failed, for that reason."""
    assert error_type == attributes(captured)[semconv.ERROR_TYPE]
    return ended(captured, "error", StatusCode.ERROR)


def test_read_to_the_end(captured: CapturedTelemetry, ask: Ask) -> None:
    """The span ends with the last line."""
    opened = ask(chat())
    assert len([each for each in opened if not captured.spans]) == 6
    assert ended(captured, "ok", StatusCode.UNSET)


def test_break(captured: CapturedTelemetry, ask: Ask) -> None:
    """Leaving the loop drops the generator."""
    for _ in ask(LONG):
        break
    assert abandoned(captured)


def test_break_and_read_on(captured: CapturedTelemetry, ask: Ask) -> None:
    """A generator that is kept can be read on, as ever, and is one request."""
    opened = ask(chat())
    for _ in opened:
        break
    assert not requests(captured)
    assert len(list(opened)) == 5
    assert ended(captured, "ok", StatusCode.UNSET)


@pytest.mark.parametrize("read", [0, 2])
def test_close(captured: CapturedTelemetry, ask: Ask, read: int) -> None:
    """Closed unread or in the middle."""
    opened = ask(LONG)
    for _ in range(read):
        next(opened)
    opened.close()
    assert abandoned(captured)


def test_never_consumed(captured: CapturedTelemetry, ask: Ask) -> None:
    """Dropped unread: one span, ended at once."""
    opened = ask(LONG)
    assert not requests(captured)
    del opened
    assert abandoned(captured)


def test_collected(captured: CapturedTelemetry, ask: Ask) -> None:
    """Part of a cycle that only the collector finds."""
    opened = ask(LONG)
    next(opened)
    cycle: list[Any] = [opened]
    cycle.append(cycle)
    del opened, cycle
    gc.collect()
    assert soon(lambda: bool(requests(captured)))
    assert abandoned(captured)


def test_nothing_keeps_it_alive(captured: CapturedTelemetry, ask: Ask) -> None:
    """The generator dies when it is dropped."""
    opened = ask(LONG)
    next(opened)
    watched = weakref.ref(opened)
    del opened
    assert watched() is None


def test_connection_lost(captured: CapturedTelemetry, ask: Ask) -> None:
    """The library's own error reaches the reader."""
    with pytest.raises(httpx.RemoteProtocolError):
        list(ask(CUT))
    assert failed(captured, "httpx.RemoteProtocolError")


def test_cut_at_a_boundary(captured: CapturedTelemetry, ask: Ask) -> None:
    """A body that ends in good order, but without its last line."""
    assert len(list(ask(lines(said(), said())))) == 2
    assert failed(captured, "incomplete_stream")


def test_empty(captured: CapturedTelemetry, ask: Ask) -> None:
    """A stream without a line."""
    assert list(ask(lines())) == []
    assert failed(captured, "incomplete_stream")


def test_consumer_raises(captured: CapturedTelemetry, ask: Ask) -> None:
    """An exception in the loop's body passes, and is not the model's fault."""

    def read() -> None:
        for _ in ask(LONG):
            raise KeyError

    with pytest.raises(KeyError):
        read()
    assert abandoned(captured)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "outcome"), [(500, "error"), (404, "rejected"), (429, "rejected"), (503, "rejected")]
)
def test_http_error(
    captured: CapturedTelemetry, ask: Ask, stream: bool, status: int, outcome: str
) -> None:
    """An error's status: refused, or failed."""
    with pytest.raises(ollama.ResponseError) as raised:
        list(ask(failing(status), stream=stream))
    assert raised.value.status_code == status
    assert ended(captured, outcome, StatusCode.ERROR)
    assert attributes(captured)[semconv.ERROR_TYPE] == str(status)


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_listens(captured: CapturedTelemetry, stream: bool) -> None:
    """The library makes a builtin error of it, but not of one in a stream."""
    errors = (ConnectionError, httpx.ConnectError)
    with ollama.Client("http://127.0.0.1:9") as made, pytest.raises(errors) as raised:
        list(made.chat(**ASKED, stream=stream))
    assert failed(captured, "httpx.ConnectError" if stream else "ConnectionError")
    assert type(raised.value).__name__ in attributes(captured)[semconv.ERROR_TYPE]


def test_timeout(captured: CapturedTelemetry, ask: Ask) -> None:
    """Silence in the middle of a stream."""
    with pytest.raises(httpx.ReadTimeout):
        list(ask(hanging(), timeout=0.1))
    assert failed(captured, "httpx.ReadTimeout")


def test_a_bad_answer(captured: CapturedTelemetry, ask: Ask) -> None:
    """What is no JSON: the library's error is the request's."""
    with pytest.raises(ValueError, match="Expecting value"):
        list(ask(lines(b"<html>\n")))
    assert failed(captured, "json.decoder.JSONDecodeError")


async def test_async_read_to_the_end(captured: CapturedTelemetry, aask: Ask) -> None:
    """The span ends with the last line."""
    assert len([each async for each in await aask(chat())]) == 6
    assert ended(captured, "ok", StatusCode.UNSET)


async def test_async_break(captured: CapturedTelemetry, aask: Ask) -> None:
    """Leaving the loop drops the generator, and ends the request before the loop gets to it."""
    async for _ in await aask(LONG):
        break
    assert abandoned(captured)


async def test_async_break_and_delete(captured: CapturedTelemetry, aask: Ask) -> None:
    """The same with a name for it."""
    opened = await aask(LONG)
    async for _ in opened:
        break
    assert not requests(captured)
    del opened
    assert abandoned(captured)


@pytest.mark.parametrize("read", [0, 2])
async def test_async_close(captured: CapturedTelemetry, aask: Ask, read: int) -> None:
    """Closed unread or in the middle."""
    opened = await aask(LONG)
    for _ in range(read):
        await anext(opened)
    await opened.aclose()
    assert abandoned(captured)


async def test_async_never_consumed(captured: CapturedTelemetry, aask: Ask) -> None:
    """Dropped unread: ended at once."""
    opened = await aask(LONG)
    del opened
    assert abandoned(captured)


async def test_async_connection_lost(captured: CapturedTelemetry, aask: Ask) -> None:
    """The library's own error reaches the reader."""
    with pytest.raises(httpx.RemoteProtocolError):
        [each async for each in await aask(CUT)]
    assert failed(captured, "httpx.RemoteProtocolError")


async def test_async_consumer_raises(captured: CapturedTelemetry, aask: Ask) -> None:
    """An exception in the loop's body passes, and is not the model's fault."""

    async def read() -> None:
        async for _ in await aask(LONG):
            raise KeyError

    with pytest.raises(KeyError):
        await read()
    assert abandoned(captured)


@pytest.mark.parametrize("stream", [False, True])
async def test_async_http_error(captured: CapturedTelemetry, aask: Ask, stream: bool) -> None:
    """An error's status."""
    with pytest.raises(ollama.ResponseError):
        [each async for each in await aask(failing(500), stream=stream)]
    assert failed(captured, "500")


async def test_async_nobody_listens(captured: CapturedTelemetry) -> None:
    """The library makes a builtin error of it."""
    async with ollama.AsyncClient("http://127.0.0.1:9") as made:
        with pytest.raises(ConnectionError):
            await made.chat(**ASKED)
    assert failed(captured, "ConnectionError")


async def test_async_wait_for(captured: CapturedTelemetry, aask: Ask) -> None:
    """D-LIF-04: a time limit round a whole answer cancels it."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(aask(whole(after=0.5), stream=False), 0.1)
    assert ended(captured, "cancelled", StatusCode.ERROR)


async def test_cancelled_before_the_first_line(captured: CapturedTelemetry, aask: Ask) -> None:
    """The reader is cancelled while it waits for headers."""
    opened = await aask(chat(headers_after=0.5))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(opened), 0.1)
    assert ended(captured, "cancelled", StatusCode.ERROR)
    assert semconv.TTFT_US not in attributes(captured)


@pytest.mark.parametrize("busy", [0.0, 30.0])
async def test_cancelled_in_the_middle(captured: CapturedTelemetry, aask: Ask, busy: float) -> None:
    """The reader is cancelled while it waits for a line, or while it is busy with one."""
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await aask(hanging()):
            begun.set()
            await asyncio.sleep(busy)

    task = asyncio.create_task(read())
    await begun.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended(captured, "cancelled", StatusCode.ERROR)
    assert semconv.TTFT_US in attributes(captured)


async def test_a_group_of_tasks(captured: CapturedTelemetry, aask: Ask) -> None:
    """D-LIF-04: one task of a group fails, the other one's request is cancelled."""
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await aask(hanging()):
            begun.set()

    async def fail() -> None:
        await begun.wait()
        raise KeyError

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await both()
    assert outcomes(captured) == ["cancelled"]
