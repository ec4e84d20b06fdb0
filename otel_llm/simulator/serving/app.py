"""What the simulated servers have in common: routes, requests to the engine, and their truth."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.simulator.driver import Driver
from otel_llm.simulator.engine import Engine, EngineRequest, QueueFull, Step
from otel_llm.simulator.serving.generation import EngineFailedError, Generation
from otel_llm.simulator.serving.http import (
    BodyTooLarge,
    Exchange,
    PeerGone,
    Receive,
    Scope,
    Send,
    parent_of,
)
from otel_llm.simulator.serving.truth import ServingTruth
from otel_llm.tracing import TracedRequest, current_request

Handler = Callable[["Call"], Awaitable[None]]
Body = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """How a server is started."""

    model: str = "simulated"
    seed: int = 0
    """Same seed and same order of requests, same texts."""
    speed: float = 1.0
    """How many times faster than on the real hardware steps take."""
    stop_share: float = 0.0
    """Share of requests that end with their last token by themselves and not by `max_tokens`."""
    reply_tokens: int = 64
    """The median length of an answer to a request that sets no limit."""
    max_open: int = 4096
    """Requests at the same time before one more is refused as overload."""
    keep_truths: int = 100_000
    """Of how many requests the truth is kept: the latest ones."""


class Refused(Exception):  # noqa: N818 - a status and its body, not a failure of ours
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        kind: One word for the truth.
        body: What the dialect says, to be sent as it is.
        content_type: Of the body.
        allowed: The methods that the path has, if another one was asked for.
        sized: Whether the length is told ahead.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        body: bytes,
        content_type: str,
        allowed: tuple[str, ...] = (),
        *,
        sized: bool = True,
    ) -> None:
        super().__init__(kind)
        self.status = status
        self.kind = kind
        self.body = body
        self.content_type = content_type
        self.allowed = allowed
        self.sized = sized


@dataclass(slots=True)
class Call:
    """One request as its handler sees it."""

    exchange: Exchange
    truth: ServingTruth
    traced: TracedRequest
    number: int
    raw: bytes = b""
    generation: Generation | None = None
    body: Body = field(default_factory=dict)


class ServingApp:
    """A bare ASGI application that serves one engine in one dialect.

    `truths` holds what really happened to each request for a model, oldest first.

    Args:
        engine: The engine; the application steps it.
        config: How the server is started.
        clock: Where all instants are read.
    """

    dialect: ClassVar[str]
    merges: ClassVar[bool] = False
    """Whether tokens that nobody has taken yet are sent together."""

    def __init__(
        self,
        engine: Engine,
        config: ServingConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.config = config or ServingConfig()
        self.driver = Driver(engine, clock=clock, speed=self.config.speed, begun=self.step_begun)
        self.clock = clock
        self.truths: deque[ServingTruth] = deque()
        self.open = 0
        self._numbers = itertools.count(1)
        self._handlers = self.handlers()

    @property
    def engine(self) -> Engine:
        """The engine that is served."""
        return self.driver.engine

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """By path and method, what answers a request."""
        raise NotImplementedError

    async def refuse(self, call: Call, refused: Refused) -> None:
        """Answer with an error."""
        length = str(len(refused.body))
        headers = (("content-type", refused.content_type), ("content-length", length))
        await call.exchange.reply(refused.status, headers, refused.body)

    def step_begun(self, step: Step) -> None:
        """A step of the engine has begun."""

    def not_found(self) -> Refused:
        """The answer to an unknown path."""
        raise NotImplementedError

    def wrong_method(self, allowed: Sequence[str]) -> Refused:
        """The answer to a known path with another method."""
        raise NotImplementedError

    def too_large(self) -> Refused:
        """The answer to a body that is too large."""
        raise NotImplementedError

    def overloaded(self) -> Refused:
        """The answer when no further request is taken."""
        raise NotImplementedError

    def broken(self) -> Refused:
        """The answer when the engine has broken down."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def aclose(self) -> None:
        """Abort what is open and stop the engine."""
        await self.driver.aclose()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                await self.aclose()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        now_ns = self.clock.monotonic_ns()
        truth = ServingTruth(self.dialect, scope["path"], now_ns)
        exchange = Exchange(scope, receive, send, lambda body, last: self._sent(truth, body, last))
        truth.trace_id, truth.parent_id = parent_of(exchange.headers.get("traceparent"))
        call = Call(exchange, truth, current_request(), next(self._numbers))
        self.open += 1
        try:
            await self._answered(call)
        except PeerGone:
            truth.outcome = truth.outcome or "cancelled"
        finally:
            self.open -= 1
            truth.status = exchange.status
            if call.generation is not None:
                call.generation.abort()
            await exchange.unwatch()
            if truth.finished_ns is None:
                truth.finished_ns = self.clock.monotonic_ns()

    async def _answered(self, call: Call) -> None:
        try:
            await self._handler(call)(call)
            call.truth.outcome = call.truth.outcome or "ok"
        except BodyTooLarge:
            await self._refuse(call, self.too_large())
        except QueueFull:
            await self._refuse(call, self.overloaded())
        except EngineFailedError:
            if call.exchange.status is not None:
                raise  # the answer is cut
            await self._refuse(call, self.broken())
        except Refused as refused:
            await self._refuse(call, refused)

    async def _refuse(self, call: Call, refused: Refused) -> None:
        call.truth.error = refused.kind
        call.truth.outcome = "error" if refused.kind == "engine" else "rejected"
        await self.refuse(call, refused)

    def _handler(self, call: Call) -> Handler:
        methods = self._handlers.get(call.exchange.path)
        if methods is None:
            raise self.not_found()
        handler = methods.get(call.exchange.method)
        if handler is None:
            raise self.wrong_method(sorted(methods))
        return handler

    def _sent(self, truth: ServingTruth, body: bytes, last: bool) -> None:
        now_ns = self.clock.monotonic_ns()
        if body:
            truth.last_delivered_ns = now_ns
            if truth.first_delivered_ns is None and truth.mark("first_token_ns") is not None:
                truth.first_delivered_ns = now_ns
        if last:
            truth.finished_ns = now_ns

    def keep(self, truth: ServingTruth) -> None:
        """Keep the truth of a request, and forget the oldest ones beyond the limit."""
        self.truths.append(truth)
        while len(self.truths) > self.config.keep_truths:
            for each in self.truths.popleft().engine:
                self.engine.truths.pop(each.request_id, None)

    async def read(self, call: Call, *, counts: bool = True) -> Any:
        """The JSON value in a request; raises `ValueError` if it is none.

        From here on a client that leaves ends it, and its truth is kept if it *counts*.
        """
        if counts:
            self.keep(call.truth)
        call.raw = await call.exchange.body()
        call.exchange.watch(lambda: self._gone(call))
        try:
            return json.loads(call.raw)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def _gone(self, call: Call) -> None:
        call.truth.outcome = "cancelled"
        call.truth.finished_ns = self.clock.monotonic_ns()
        if call.generation is not None:
            call.generation.leave()

    def generate(
        self,
        call: Call,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int | None,
        n: int = 1,
        priority: int = 0,
    ) -> Generation:
        """Hand a request to the engine: *n* sequences for each of *prompts*.

        Raises:
            QueueFull, PromptTooLong: As the engine.
            PeerGone: The client has left already.
        """
        if call.exchange.peer_gone:
            raise PeerGone
        if self.open > self.config.max_open:
            raise QueueFull(f"{self.config.max_open} requests are open already")
        call.generation = generation = Generation(
            self.driver, call.truth, call.traced, merges=self.merges
        )
        generation.input_tokens = sum(len(prompt) for prompt in prompts)
        call.traced.usage(input_tokens=generation.input_tokens)
        wanted = [prompt for prompt in prompts for _ in range(n)]
        stem = f"{self.dialect}-{self.config.seed}-{call.number}"
        generation.submit(
            [
                self._request(f"{stem}-{index}", prompt, max_tokens, priority)
                for index, prompt in enumerate(wanted)
            ]
        )
        return generation

    def _request(
        self, request_id: str, prompt: Sequence[int], max_tokens: int | None, priority: int
    ) -> EngineRequest:
        random = Random(request_id)  # noqa: S311 - no secret is made of it
        limit = max_tokens or max(1, self.engine.config.longest - len(prompt))
        drawn = max(1, round(random.lognormvariate(0.0, 0.5) * self.config.reply_tokens))
        stops_at = None if max_tokens else drawn
        if max_tokens and random.random() < self.config.stop_share:
            stops_at = max_tokens
        return EngineRequest(
            id=request_id,
            prompt=prompt,
            max_tokens=limit,
            priority=priority,
            stops_at=stops_at,
        )


def hexadecimal(seed: str, digits: int) -> str:
    """An id that is the same in every run."""
    return f"{Random(seed).getrandbits(4 * digits):0{digits}x}"  # noqa: S311
