"""Whatever a request holds, it is answered, and nothing of it is left."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import httpx
import pytest

from otel_llm.simulator import virtual
from otel_llm.simulator.serving import DIALECTS
from tests.simulator.serving.harness import MODEL, URL, app_of, engine_config

FIELDS = (
    "messages", "prompt", "max_tokens", "n", "stream", "stream_options", "options", "keep_alive",
    "inputs", "parameters", "truncate", "priority", "max_completion_tokens", "model",
)  # fmt: skip
PLAIN = (None, True, False, 0, -1, 3, 1.5, "", "hi there")


def value(rng: Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.randrange(12 if depth < 2 else 9)
    if kind < len(PLAIN):
        return PLAIN[kind]
    inner = [value(rng, depth + 1) for _ in range(kind - 8)]
    return inner if kind == 9 else {"role": "user", "content": inner[0], "num_predict": inner[-1]}


def body(rng: Random) -> Any:
    """A body that is right here and there."""
    if rng.random() < 0.05:
        return value(rng)
    given = {name: value(rng) for name in FIELDS if rng.random() < 0.4}
    usual = {
        "model": MODEL,
        "messages": [{"role": "user", "content": value(rng)}],
        "inputs": "hi",
        "prompt": "hi",
        "stream": True,
    }
    return given | {name: each for name, each in usual.items() if rng.random() < 0.5}


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_any_body_is_answered(dialect: str) -> None:
    """Without an error of ours, on every route, and the engine is empty afterwards."""

    async def main() -> tuple[list[Exception], set[int], int, bool]:
        rng = Random(7)
        clock = virtual.VirtualClock(asyncio.get_running_loop())
        app = app_of(dialect, clock, engine_config(max_model_len=60), serving={"reply_tokens": 4})
        statuses = set()
        async with virtual.InProcessTransport(app) as transport:
            http = httpx.AsyncClient(transport=transport, base_url=URL, timeout=600)
            for path, methods in app.handlers().items():
                for _ in range(60 if "POST" in methods else 0):
                    reply = await http.post(path, content=json.dumps(body(rng)))
                    statuses.add(reply.status_code)
        return transport.errors, statuses, app.open, app.driver.busy

    errors, statuses, left, busy = virtual.run(main())
    assert errors == []
    assert statuses <= {200, 400, 404, 422}
    assert (left, busy) == (0, False)
