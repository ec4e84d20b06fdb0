"""A real vLLM server: bare, with its native tracing, with ours, and with our records by hand.

All servers stand side by side; in each round each of them answers the same requests, one server
after the other in random order. CPU is that of the API-server process and all its threads, from
the kernel's accounting, exporter included, for requests one at a time (several at once share
engine steps by chance, which moves the CPU of a request by half); throughput is answers per second
of several at once. The API servers have one core to themselves, engines and callers the other.

    python -m tests.benchmarks.vllm_server [--rounds 20] [--requests 24] [--tokens 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.report import ROOT, Bound, interval, write
from tests.benchmarks.sink import Sink
from tests.services import vllm

VARIANTS = ("bare", "native", "byhand", "ours")
AT_ONCE = 8
API_CORE, ENGINE_CORE = 1, 0


def main() -> int:
    """Run the rounds and check the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as work:
        servers = start(stack, Path(work))
        rounds = [one_round(servers, options, index) for index in range(options.rounds + 1)][1:]
    return write("vllm_server", *judged(rounds, options))


def start(stack: ExitStack, work: Path) -> dict[str, vllm.Vllm]:
    """All servers, exporting to one sink that drops what it gets."""
    os.sched_setaffinity(0, {ENGINE_CORE})
    sink = stack.enter_context(Sink())
    overlays = {
        "ours": vllm.overlay(ROOT, work / "ours"),
        "byhand": vllm.overlay(ROOT / "tests/benchmarks/byhand", work / "byhand"),
    }
    servers = {}
    for name in VARIANTS:
        folder = work / f"server-{name}"
        folder.mkdir()
        traced = name != "bare"
        servers[name] = stack.enter_context(
            vllm.Vllm.start(
                folder,
                overlay=overlays.get(name),
                args=[f"--otlp-traces-endpoint={sink.url}/v1/traces"] if name == "native" else [],
                env={
                    **({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url} if traced else {}),
                    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                    "OTEL_BSP_SCHEDULE_DELAY": "500",
                    "OMP_NUM_THREADS": "1",
                    "KMP_BLOCKTIME": "0",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                },
            )
        )
        pin(servers[name].pid)
    return servers


def one_round(
    servers: dict[str, vllm.Vllm], options: argparse.Namespace, index: int
) -> dict[str, dict[str, float]]:
    """Each server's throughput and CPU for the same requests."""
    order = list(servers)
    random.Random(index).shuffle(order)
    found = {name: measured(servers[name], options) for name in order}
    print(index, {name: round(row["cpu_us"]) for name, row in found.items()}, flush=True)
    return found


def measured(server: vllm.Vllm, options: argparse.Namespace) -> dict[str, float]:
    """Requests per second, and microseconds of CPU per request of the API-server process."""
    before = cpu_ns(server.pid)
    asyncio.run(load(server, options.requests, options.tokens, at_once=1))
    time.sleep(0.7)  # the exporter works on what has just ended
    spent = cpu_ns(server.pid) - before
    started = time.perf_counter()
    asyncio.run(load(server, 2 * options.requests, options.tokens, at_once=AT_ONCE))
    took = time.perf_counter() - started
    return {"per_s": 2 * options.requests / took, "cpu_us": spent / 1000 / options.requests}


def pin(pid: int) -> None:
    """Give the API server a core of its own, and its engine the other."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {API_CORE})


def cpu_ns(pid: int) -> int:
    """Nanoseconds on a CPU of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


async def load(server: vllm.Vllm, requests: int, tokens: int, *, at_once: int) -> None:
    """Send *requests* streaming chat requests, some of them at once."""
    host, port = server.url.removeprefix("http://").split(":")
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            await request(host, int(port), tokens)

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def request(host: str, port: int, tokens: int) -> None:
    """One request on a connection of its own, read to the end without looking at it."""
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"{secrets.token_hex(4)} tell me"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"traceparent: {parent}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + body)
    answer = await reader.read()
    while piece := await reader.read():
        answer = answer[-64:] + piece
    writer.close()
    assert b"[DONE]" in answer, answer


def judged(
    rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Bound]]:
    """The numbers, and their bounds."""
    loss = [1 - row["ours"]["per_s"] / row["bare"]["per_s"] for row in rounds]
    added = {
        name: [row[name]["cpu_us"] - row["bare"]["cpu_us"] for row in rounds] for name in VARIANTS
    }
    cost = {name: median(values) for name, values in added.items()}
    result = {
        "rounds": len(rounds),
        "requests_per_round": options.requests,
        "tokens_per_request": options.tokens,
        "bare_cpu_us_per_request": median(row["bare"]["cpu_us"] for row in rounds),
        "added_cpu_us_per_request": {
            name: {"median": cost[name], "ci95": interval(added[name])} for name in VARIANTS[1:]
        },
        "requests_per_s": {name: median(row[name]["per_s"] for row in rounds) for name in VARIANTS},
        "throughput_loss": {"median": median(loss), "ci95": interval(loss)},
    }
    bounds = [
        Bound("throughput loss, upper 95 % bound", max(0.0, interval(loss, tail=0.05)[1]), 0.02),
        Bound("CPU per request, ours / native's one span", ratio(cost, "native"), 8),
        Bound("CPU per request, ours / by hand", ratio(cost, "byhand"), 1.2),
    ]
    return result, bounds


def ratio(cost: dict[str, float], other: str) -> float:
    """Our added CPU by another's; infinite, hence out of bounds, if that was not measurable."""
    return cost["ours"] / cost[other] if cost[other] > 0 else float("inf")


if __name__ == "__main__":
    sys.exit(main())
