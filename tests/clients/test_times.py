"""What is said of time, against the reader's own clock: real sockets, a server that is paced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from opentelemetry import trace

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import STREAMED, aclient, attributes, client, requests
from tests.clients.fixtures import Ask
from tests.fakes.openai_server import OpenAIServer, serving, stream

EARLY = stream(8, first=0.08, gap=0.005)
LATE = stream(8, headers_after=0.08, gap=0.005)
PACE = 0.03
PACED = stream(30, first=PACE, gap=PACE)
BUSY = [0.0, 0.01, 0.1]
Serve = Callable[..., OpenAIServer]


def says(chunk: Any) -> bool:
    """Whether a chunk brings a piece of the answer."""
    return bool(chunk.choices and chunk.choices[0].delta.content)


def first_token(made: Any) -> float:
    """How long the reader waited for the first piece, seconds on its own clock."""
    began = time.monotonic()
    found = 0.0
    for chunk in made.chat.completions.create(**STREAMED):
        if not found and says(chunk):
            found = time.monotonic() - began
    return found


async def first_token_later(made: Any) -> float:
    """As `first_token`, of an asynchronous client."""
    began = time.monotonic()
    found = 0.0
    async for chunk in await made.chat.completions.create(**STREAMED):
        if not found and says(chunk):
            found = time.monotonic() - began
    return found


def within_a_millisecond(captured: CapturedTelemetry, seen: list[float]) -> bool:
    """Whether each request's time to first token is the reader's own; medians of several."""
    told = [each.attributes[semconv.TTFT_US] / 1e6 for each in requests(captured)]
    off = [abs(mine - theirs) for mine, theirs in zip(seen, told, strict=True)]
    assert all(each >= 0.08 for each in told)
    return median(off) <= 0.001


@pytest.mark.parametrize("answer", [EARLY, LATE], ids=["early headers", "late headers"])
def test_ttft(captured: CapturedTelemetry, answer: Any) -> None:
    """Right to the millisecond, whether the time is spent before or after the headers."""
    with serving(answer) as server, client(server) as made:
        assert within_a_millisecond(captured, [first_token(made) for _ in range(5)])


@pytest.mark.parametrize("answer", [EARLY, LATE], ids=["early headers", "late headers"])
async def test_async_ttft(captured: CapturedTelemetry, answer: Any) -> None:
    """The same, asynchronous."""
    with serving(answer) as server:
        async with aclient(server) as made:
            seen = [await first_token_later(made) for _ in range(5)]
    assert within_a_millisecond(captured, seen)


def test_first_chunk_is_another_fact(captured: CapturedTelemetry, ask: Ask) -> None:
    """The role comes at once and is no token."""
    list(ask(EARLY))
    found = attributes(captured)
    assert found[semconv.TTFT_US] >= 80_000
    assert found[semconv.TIME_TO_FIRST_CHUNK] * 1e6 < found[semconv.TTFT_US] - 20_000


def test_the_span_covers_the_stream(captured: CapturedTelemetry, ask: Ask) -> None:
    """From the call to the end of the reading."""
    began = time.time_ns()
    list(ask(EARLY))
    (span,) = requests(captured)
    assert began <= span.start_time + 1_000
    assert 0 <= time.time_ns() - span.end_time <= 20_000_000
    assert span.end_time - span.start_time >= 115_000_000


@pytest.mark.parametrize("busy", BUSY)
def test_a_busy_reader(captured: CapturedTelemetry, ask: Ask, busy: float) -> None:
    """The reader's time is told apart from the model's."""
    held = 0.0
    for _ in ask(PACED):
        held += _timed(lambda: time.sleep(busy)) if busy else 0.0
    _check_gaps(attributes(captured), busy, held)


@pytest.mark.parametrize("busy", BUSY)
async def test_a_busy_async_reader(captured: CapturedTelemetry, aask: Ask, busy: float) -> None:
    """The same, asynchronous."""
    held = 0.0
    async for _ in await aask(PACED):
        if busy:
            began = time.monotonic()
            await asyncio.sleep(busy)
            held += time.monotonic() - began
    _check_gaps(attributes(captured), busy, held)


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _check_gaps(found: Any, busy: float, held: float) -> None:
    stall = found[semconv.CONSUMER_STALL_US] / 1e6
    assert abs(stall - held) <= (0.05 * held if busy else 0.02)
    if busy <= 0.01:
        assert 27_000 <= found[semconv.CHUNK_GAP_P50_US] <= 33_000
        assert found[semconv.TPOT_US] >= 27_000
        assert "decode=observed" in found[semconv.SOURCES]
    else:
        absent = {semconv.CHUNK_GAP_P50_US, semconv.CHUNK_GAP_P99_US, semconv.TPOT_US}
        assert not absent & set(found)
        assert "decode=estimated" in found[semconv.SOURCES]
        assert found[semconv.BUFFERED_CHUNKS] >= 20


def test_the_current_span_is_the_callers(captured: CapturedTelemetry, ask: Ask) -> None:
    """Before, between chunks and after."""
    with captured.tracer_provider.get_tracer("caller").start_as_current_span("caller") as caller:
        current = [trace.get_current_span() for _ in ask(stream())]
        current.append(trace.get_current_span())
    assert {caller} == set(current)


async def test_the_current_span_of_async_readers(captured: CapturedTelemetry, aask: Ask) -> None:
    """The same, asynchronous, and closed in another task than the one that read."""
    with captured.tracer_provider.get_tracer("caller").start_as_current_span("caller") as caller:
        opened = await aask(stream(50))
        current = []
        for _ in range(3):
            await anext(opened)
            current.append(trace.get_current_span())
        await asyncio.create_task(opened.close())
        current.append(trace.get_current_span())
    assert {caller} == set(current)


async def test_read_by_two_tasks(captured: CapturedTelemetry, aask: Ask) -> None:
    """One task reads the head, another the rest."""
    opened = await aask(stream(5))
    first = await anext(opened)

    async def rest() -> list[Any]:
        return [each async for each in opened]

    assert len(await asyncio.create_task(rest())) == 7
    assert first.choices[0].delta.role == "assistant"
    assert attributes(captured)[semconv.OUTCOME] == "ok"


def test_traceparent(captured: CapturedTelemetry, serve: Serve) -> None:
    """Sent once, and it names the span of the call; baggage is not sent."""
    server = serve(stream())
    with client(server) as made:
        list(made.chat.completions.create(**STREAMED))
    (span,) = requests(captured)
    context = span.get_span_context()
    ids = f"{context.trace_id:032x}-{context.span_id:016x}"
    expected = f"00-{ids}-{int(context.trace_flags):02x}"
    assert [expected] == server.last.headers["traceparent"]
    assert "baggage" not in server.last.headers


def test_the_applications_own_traceparent(captured: CapturedTelemetry, serve: Serve) -> None:
    """What the application has set stays."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    server = serve(stream())
    with client(server, default_headers={"Traceparent": own}) as made:
        list(made.chat.completions.create(**STREAMED))
    assert [own] == server.last.headers["traceparent"]


def test_a_role_is_no_token(captured: CapturedTelemetry, ask: Ask) -> None:
    """A stream that was left after its role has no first token."""
    for _ in ask(stream()):
        break
    assert semconv.TTFT_US not in attributes(captured)
