"""Short ways to make an engine and to drive it in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from zlib import crc32

from otel_llm.simulator.engine import (
    Engine,
    EngineConfig,
    EngineRequest,
    Output,
    PromptTooLong,
    QueueFull,
    Step,
)
from otel_llm.simulator.hardware import CostModel

MS = 1_000_000
STEP = 10 * MS
"""What a step costs in these tests, unless something makes it worse."""
TEN_MS = CostModel(overhead_s=0.01)


def config(**settings: Any) -> EngineConfig:
    """A small engine whose steps take 10 ms, whatever is in them."""
    ready: dict[str, Any] = {"num_blocks": 100, "block_size": 4, "cost": TEN_MS}
    return EngineConfig(**ready | settings)


def engine(**settings: Any) -> Engine:
    """Such an engine; `seed` and `conditions` go to it, the rest to its configuration."""
    own = {name: settings.pop(name) for name in ("seed", "conditions") if name in settings}
    return Engine(config(**settings), **own)


def request(
    name: str, prompt: int = 4, answer: int = 3, first: int | None = None, **more: Any
) -> EngineRequest:
    """A request; prompts with the same *first* token id are the beginnings of one text."""
    start = crc32(name.encode()) << 16 if first is None else first
    return EngineRequest(id=name, prompt=range(start, start + prompt), max_tokens=answer, **more)


def step(engine: Engine, now_ns: int = 0) -> tuple[Step, list[Output]]:
    """One whole step, which there has to be."""
    begun = engine.begin_step(now_ns)
    assert begun is not None
    return begun, engine.end_step(begun, begun.started_ns + begun.duration_ns)


def run(engine: Engine, arrivals: Iterable[tuple[int, EngineRequest]] = (), now_ns: int = 0) -> int:
    """Submit each request at its instant, in order, and step until none is left; when that was."""
    coming = deque(arrivals)
    while True:
        _submit(engine, coming, now_ns)
        begun = engine.begin_step(now_ns)
        if begun is None:
            if not coming:
                return now_ns
            now_ns = coming[0][0]
            continue
        now_ns = begun.started_ns + begun.duration_ns
        _submit(engine, coming, now_ns - 1)
        engine.end_step(begun, now_ns)


def _submit(engine: Engine, coming: deque[tuple[int, EngineRequest]], until_ns: int) -> None:
    while coming and coming[0][0] <= until_ns:
        at_ns, each = coming.popleft()
        with suppress(QueueFull, PromptTooLong):
            engine.submit(each, at_ns)


def chunks(engine: Engine, now_ns: int = 0) -> list[dict[str, int]]:
    """What every step until the end gives to each request, in tokens."""
    found = []
    while (begun := engine.begin_step(now_ns)) is not None:
        found.append({each.sequence.request.id: each.tokens for each in begun.shares})
        now_ns = begun.started_ns + begun.duration_ns
        engine.end_step(begun, now_ns)
    return found


def kinds(engine: Engine, name: str) -> list[str]:
    """The kinds of causes of a request, in order."""
    return [cause.kind for cause in engine.truths[name].causes]
