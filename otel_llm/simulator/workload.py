"""Open-loop load: who asks when, and for how much.

Arrivals are a Poisson process; they do not wait for earlier requests, as users do not. Lengths are
log-normal, as they are found in published traces of production. The same seed gives the same list,
and each arrival draws from a generator of its own, so that a change of one does not move the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.simulator.engine import EngineConfig

FOREVER = math.inf
TEMPLATE_TOKENS = 64
"""Kept free for what a chat template adds to a prompt."""
WORDS = ("a", "queue", "of", "slow", "tokens", "in", "the", "cache", "and", "one", "more", "block")
"""What prompts are made of; each is one token."""


def seeded(*parts: object) -> Random:
    """A generator of its own for whatever *parts* name; the same parts, the same numbers."""
    return Random("-".join(map(str, parts)))  # noqa: S311 - no secret is made of it


@dataclass(frozen=True, slots=True)
class Window:
    """A span of the run, in seconds since its start; the whole run by default."""

    from_s: float = 0.0
    until_s: float = FOREVER

    def __contains__(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.until_s


ALWAYS = Window()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal token counts: their median, the spread of their logarithm, and bounds."""

    median: float
    sigma: float = 0.5
    most: int = 32_768
    least: int = 1

    def draw(self, rng: Random) -> int:
        """One length in tokens."""
        drawn = round(self.median * math.exp(rng.gauss(0.0, self.sigma)))
        return max(self.least, min(self.most, drawn))

    @property
    def mean(self) -> float:
        """The mean of the distribution without its bounds, in tokens."""
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One kind of request.

    Args:
        name: What it is called.
        prompt: Tokens of its own, without the shared prefix.
        output: Tokens generated.
        weight: Its share of the arrivals, relative to the other classes; of a class that is mixed
            in, the share of all arrivals in its window.
        streaming: The share that asks for a stream, 0 to 1.
        prefix_tokens: How many tokens it shares at the head with others of its class.
        prefixes: How many different heads there are.
        priority: As vLLM has it: lower is served first.
        window: When requests of a class that is mixed in come.
    """

    name: str
    prompt: Lengths
    output: Lengths
    weight: float = 1.0
    streaming: float = 1.0
    prefix_tokens: int = 0
    prefixes: int = 1
    priority: int = 0
    window: Window = ALWAYS


CHAT = RequestClass("chat", Lengths(120, 0.6, 2048), Lengths(90, 0.6, 512), weight=5)
SUMMARISE = RequestClass(
    "summarise", Lengths(5000, 0.4, 16_384), Lengths(150, 0.4, 512), weight=0.6, streaming=0.3
)
CODE = RequestClass("code", Lengths(700, 0.7, 8192), Lengths(220, 0.6, 1024), weight=1.5)
RAG = RequestClass(
    "rag", Lengths(500, 0.5, 4096), Lengths(110, 0.5, 512), 1.5, prefix_tokens=1024, prefixes=8
)
AGENT = RequestClass(
    "agent", Lengths(300, 0.6, 4096), Lengths(60, 0.6, 256), 1.4, 0.5, prefix_tokens=3072
)
MIX = (CHAT, SUMMARISE, CODE, RAG, AGENT)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and its time, in seconds since the start of the run."""

    index: int
    at_s: float
    name: str
    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    priority: int = 0
    prefix: str | None = None
    prefix_tokens: int = 0

    @property
    def prompt(self) -> str:
        """The text to send: one word per token, the shared head first. Made at each call."""
        shared = min(self.prefix_tokens, self.prompt_tokens)
        own = self.prompt_tokens - shared
        head = _words(f"{self.prefix}", shared)
        return " ".join([*head, *_words(f"request-{self.index}", own)])


def _words(first: str, count: int) -> Iterator[str]:
    """*count* words of which the first makes the block, and so all behind it, differ."""
    if count > 0:
        yield first
    yield from (WORDS[number % len(WORDS)] for number in range(1, count))


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in a mix of classes that come at a rate, whatever becomes of the earlier ones.

    Args:
        rate_per_s: Mean arrivals per second.
        classes: The mix.
        model: What every request asks for.
        burst: How many times the rate is higher during a burst; 1 is none.
        burst_every_s: From the start of one burst to the next.
        burst_s: How long a burst lasts.
        longest: The most tokens of a prompt and its answer, as far as the engine takes; a longer
            prompt is cut.
        mixed_in: Further classes, each in place of a share of the arrivals; the rest stay.
    """

    rate_per_s: float
    classes: tuple[RequestClass, ...] = MIX
    model: str = "simulated"
    burst: float = 1.0
    burst_every_s: float = 60.0
    burst_s: float = 5.0
    longest: int = 32_768
    mixed_in: tuple[RequestClass, ...] = ()

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise ValueError(f"rate_per_s is {self.rate_per_s}; it must be above 0")
        if not any(each.weight > 0 for each in self.classes):
            raise ValueError("no class of requests has a weight above 0")

    @classmethod
    def at_utilisation(
        cls, utilisation: float, engine: EngineConfig, classes: tuple[RequestClass, ...] = MIX
    ) -> Workload:
        """A workload that keeps *engine* busy for that share of the time; 1 is all it can do."""
        rate_per_s = utilisation * capacity_per_s(engine, classes)
        return cls(rate_per_s, classes, longest=engine.longest)

    def mixed(self, kind: RequestClass) -> Workload:
        """The same arrivals, some of which are of one more class."""
        return replace(self, mixed_in=(*self.mixed_in, kind))

    def arrivals(self, seed: int, requests: int) -> list[Arrival]:
        """The first *requests* arrivals, in order of time."""
        times = self._times(seeded(seed, "times"))
        return [self._arrival(seed, index, next(times)) for index in range(requests)]

    def _times(self, rng: Random) -> Iterator[float]:
        """A Poisson process whose rate changes, by thinning one of the highest rate."""
        highest = self.rate_per_s * max(1.0, self.burst)
        now = 0.0
        while True:
            now += rng.expovariate(highest)
            if rng.random() * highest < self._rate_at(now):
                yield now

    def _rate_at(self, now_s: float) -> float:
        bursting = self.burst != 1.0 and now_s % self.burst_every_s < self.burst_s
        return self.rate_per_s * (self.burst if bursting else 1.0)

    def _arrival(self, seed: int, index: int, at_s: float) -> Arrival:
        rng = seeded(seed, index)
        kind = self._mixed_in(seeded(seed, index, "mixed"), at_s) or self._class(rng)
        shared = kind.prefix_tokens
        head = f"{kind.name}-{rng.randrange(kind.prefixes)}"
        room = self.longest - TEMPLATE_TOKENS
        prompt, output = shared + kind.prompt.draw(rng), min(kind.output.draw(rng), room // 2)
        return Arrival(
            index=index,
            at_s=at_s,
            name=kind.name,
            model=self.model,
            prompt_tokens=min(prompt, room - output),
            max_tokens=output,
            stream=rng.random() < kind.streaming,
            priority=kind.priority,
            prefix=head if shared else None,
            prefix_tokens=shared,
        )

    def _mixed_in(self, rng: Random, at_s: float) -> RequestClass | None:
        hit = (kind for kind in self.mixed_in if rng.random() < kind.weight and at_s in kind.window)
        return next(hit, None)

    def _class(self, rng: Random) -> RequestClass:
        return rng.choices(self.classes, [each.weight for each in self.classes])[0]


def capacity_per_s(engine: EngineConfig, classes: tuple[RequestClass, ...] = MIX) -> float:
    """The most requests of the mix that *engine* can finish per second.

    A batch that is always full, prefixes always cached, nobody preempted: a bound, of which an
    engine reaches 70 to 90 %, the less the shorter its KV cache is. Each step decodes one token
    per sequence and prefills what keeps the batch full; the batch is bounded by its number of
    sequences, by the KV cache, and by the tokens of a step.
    """
    total = sum(each.weight for each in classes)
    own = sum(each.weight * each.prompt.mean for each in classes) / total
    held = own + sum(each.weight * each.prefix_tokens for each in classes) / total
    output = sum(each.weight * each.output.mean for each in classes) / total
    prefill = own / output  # prompt tokens that go with one token of output
    batch = min(
        engine.max_num_seqs,
        max(1.0, engine.num_blocks * engine.block_size / (held + output)),
        max(1.0, engine.max_num_batched_tokens / (1 + prefill)),
    )
    step_s = engine.cost.step_seconds(
        prefill_tokens=round(batch * prefill),
        prefill_context=round(batch * prefill * (held - own / 2)),
        decode_sequences=round(batch),
        kv_tokens=round(batch * (held + output / 2)),
    )
    return batch / output / step_s
