"""The open-loop driver: every request is sent at its time, whatever became of the earlier ones.

A driver that waits for answers asks less of a slow server, and so hides what it measures. This one
tells instead how late it was itself, so that nobody takes its own delay for the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from otel_llm.simulator.workload import ALWAYS, Arrival, Window, seeded

Send = Callable[[Arrival], Awaitable[object]]
LATE_S = 0.05
"""A request sent later than this was delayed by its sender and not by the server."""


@dataclass(slots=True)
class Sent:
    """One request as its sender saw it; seconds since the start of the run.

    `ended_s` is None for a request that the time limit cut off, or that was never sent; `error` is
    the class name of the exception that ended it.
    """

    arrival: Arrival
    sent_s: float | None = None
    ended_s: float | None = None
    error: str | None = None

    @property
    def late_s(self) -> float:
        """How much later than planned it was sent; 0 if it was not."""
        return 0.0 if self.sent_s is None else max(0.0, self.sent_s - self.arrival.at_s)


@dataclass(slots=True)
class LoadReport:
    """What became of every arrival, in their order."""

    sent: list[Sent] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        """How many had not ended when the time was up."""
        return sum(1 for each in self.sent if each.ended_s is None)

    @property
    def latest_s(self) -> float:
        """The longest delay of the sender itself, seconds."""
        return max((each.late_s for each in self.sent), default=0.0)

    @property
    def late(self) -> int:
        """How many requests the sender itself delayed by more than `LATE_S`."""
        return sum(1 for each in self.sent if each.late_s > LATE_S)


async def drive(
    arrivals: Sequence[Arrival],
    send: Send,
    *,
    progress: Callable[[int, int], None] | None = None,
    limit_s: float | None = None,
) -> LoadReport:
    """Send every arrival at its time, on the running loop's clock, and wait for all to end.

    Args:
        arrivals: In order of time.
        send: Makes one request and reads its reply; its exceptions are counted, not raised.
        progress: Called with how many have ended and how many there are, after each.
        limit_s: After this many seconds what is open is cancelled.

    Returns:
        What became of each. Nothing is left running, also if this is cancelled.
    """
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    report = LoadReport([Sent(each) for each in arrivals])
    tasks: list[asyncio.Task[None]] = []
    ended = 0

    async def one(entry: Sent) -> None:
        nonlocal ended
        entry.sent_s = loop.time() - start_s
        try:
            await send(entry.arrival)
        except Exception as error:  # noqa: BLE001 - what a request raises is its result
            entry.error = type(error).__name__
        entry.ended_s = loop.time() - start_s
        ended += 1
        if progress is not None:
            progress(ended, len(arrivals))

    async def all_of_them() -> None:
        for entry in report.sent:
            await asyncio.sleep(start_s + entry.arrival.at_s - loop.time())
            tasks.append(loop.create_task(one(entry)))
        await asyncio.gather(*tasks)

    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(all_of_them(), limit_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return report


@dataclass(frozen=True, slots=True)
class Habit:
    """How a share of the requests is treated by those who sent them.

    Args:
        pause_s: What a reader does between two reads of its stream takes so long.
        leaves: A reader leaves its stream after some chunks, a caller gives up waiting.
        share: Of the requests in the window, 0 to 1.
        window: When, by the time a request is sent.
    """

    pause_s: float = 0.0
    leaves: bool = False
    share: float = 1.0
    window: Window = ALWAYS


@dataclass(frozen=True, slots=True)
class Manner:
    """How one request is read: see `Habit`. None is to the end."""

    pause_s: float = 0.0
    leave_after: int | None = None
    """Chunks of a stream."""
    give_up_s: float | None = None
    """Seconds of a call that does not stream."""


@dataclass(frozen=True, slots=True)
class ClientBehaviour:
    """How all requests are sent and read; *max_retries* is the client library's own setting."""

    habits: tuple[Habit, ...] = ()
    max_retries: int = 0
    seed: int = 0

    def of(self, arrival: Arrival) -> Manner:
        """How this one is read, the same in every run."""
        rng = seeded(self.seed, arrival.index, "manner")
        hit = [each for each in self.habits if rng.random() < each.share]
        hit = [each for each in hit if arrival.at_s in each.window]
        leaves = any(each.leaves for each in hit)
        return Manner(
            pause_s=sum(each.pause_s for each in hit),
            leave_after=rng.randint(1, 20) if leaves and arrival.stream else None,
            give_up_s=rng.uniform(0.02, 0.5) if leaves and not arrival.stream else None,
        )


@dataclass(slots=True)
class Reading:
    """What really happened to one request in its client, for comparison with what is told of it."""

    chunks: int = 0
    """Read from a stream."""
    paused_s: float = 0.0
    """How long the reader did something else."""
    left: bool = False
    """It left its stream, or gave up waiting."""
    complete: bool = False
    """The stream's end record was read."""
    first_s: float | None = None
    """When the first chunk with text was handed over, on the loop's clock; None if none was."""
    last_s: float | None = None
    """When the last one was."""


class Client:
    """Sends arrivals through one client library; use it as `async with`.

    Args:
        call: Makes one request, gives what the library gives: an async iterator for a stream.
        close: Closes the library's client.
        look: Whether a chunk of a stream holds a part of the answer, and whether it is the end.
        behaviour: How replies are read.
    """

    def __init__(
        self,
        call: Callable[[Arrival], Awaitable[Any]],
        close: Callable[[], Awaitable[object]],
        look: Callable[[Any], tuple[object, object]],
        behaviour: ClientBehaviour,
    ) -> None:
        self._call = call
        self._look = look
        self._close = close
        self._behaviour = behaviour
        self.readings: dict[int, Reading] = {}
        """What the client did with each request, by its index."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._close()

    async def __call__(self, arrival: Arrival) -> None:
        """Send one request and read its reply, in the manner it is due."""
        manner = self._behaviour.of(arrival)
        reading = self.readings[arrival.index] = Reading()
        try:
            async with asyncio.timeout(manner.give_up_s):
                reply = await self._call(arrival)
        except TimeoutError:
            reading.left = manner.give_up_s is not None
            raise
        if arrival.stream:
            await self._read(reply, manner, reading)

    async def _read(self, stream: Any, manner: Manner, reading: Reading) -> None:
        now_s = asyncio.get_running_loop().time
        async with aclosing(_Closing(stream)) as items:
            async for item in items.stream:
                came_s = now_s()
                reading.chunks += 1
                text, end = self._look(item)
                reading.complete = reading.complete or bool(end)
                if text:
                    reading.first_s, reading.last_s = reading.first_s or came_s, came_s
                if reading.chunks == manner.leave_after:
                    reading.left = True
                    return
                if manner.pause_s:
                    await asyncio.sleep(manner.pause_s)
                    reading.paused_s += now_s() - came_s


class _Closing:
    """A stream whose way to be closed is `close` (openai) or `aclose` (generators)."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self.stream = stream

    async def aclose(self) -> None:
        close = getattr(self.stream, "aclose", None) or getattr(self.stream, "close", None)
        if close is not None:
            await close()


def _of_chat(chunk: Any) -> tuple[object, object]:
    choice = chunk.choices[0] if chunk.choices else None
    return (choice.delta.content, choice.finish_reason) if choice else (None, None)


def _of_ollama(chunk: Any) -> tuple[object, object]:
    return chunk.message.content, chunk.done


def openai_client(
    base_url: str, behaviour: ClientBehaviour = ClientBehaviour(), **more: Any
) -> Client:
    """Chat completions through the `openai` library.

    Args:
        base_url: With `/v1`.
        behaviour: How replies are read and failures retried.
        more: Further arguments of `openai.AsyncOpenAI`: `http_client`, `timeout`.
    """
    import openai

    client: Any = openai.AsyncOpenAI(
        base_url=base_url, api_key="none", max_retries=behaviour.max_retries, **more
    )

    def call(arrival: Arrival) -> Awaitable[Any]:
        extra: dict[str, Any] = {}
        if arrival.stream:
            extra["stream_options"] = {"include_usage": True}
        if arrival.priority:
            extra["extra_body"] = {"priority": arrival.priority}
        made: Awaitable[Any] = client.chat.completions.create(
            model=arrival.model,
            messages=[{"role": "user", "content": arrival.prompt}],
            max_tokens=arrival.max_tokens,
            stream=arrival.stream,
            **extra,
        )
        return made

    return Client(call, client.close, _of_chat, behaviour)


def ollama_client(
    base_url: str, behaviour: ClientBehaviour = ClientBehaviour(), **more: Any
) -> Client:
    """Chats through the `ollama` library, which retries nothing; *more* goes to its client."""
    import ollama

    client: Any = ollama.AsyncClient(base_url, **more)

    def call(arrival: Arrival) -> Awaitable[Any]:
        made: Awaitable[Any] = client.chat(
            model=arrival.model,
            messages=[{"role": "user", "content": arrival.prompt}],
            options={"num_predict": arrival.max_tokens},
            stream=arrival.stream,
        )
        return made

    return Client(call, client.close, _of_ollama, behaviour)


def huggingface_client(
    base_url: str, behaviour: ClientBehaviour = ClientBehaviour(), **more: Any
) -> Client:
    """Chats through `huggingface_hub`, which retries nothing; *more* goes to its client."""
    import huggingface_hub

    client: Any = huggingface_hub.AsyncInferenceClient(base_url, **more)

    def call(arrival: Arrival) -> Awaitable[Any]:
        made: Awaitable[Any] = client.chat_completion(
            [{"role": "user", "content": arrival.prompt}],
            model=arrival.model,
            max_tokens=arrival.max_tokens,
            stream=arrival.stream,
        )
        return made

    return Client(call, client.close, _of_chat, behaviour)
