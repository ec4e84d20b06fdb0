"""A real vLLM server: bare, with its native tracing, with ours, and with our records by hand.

It is one server, switched from one to the other by signals (`switch/`), in random order: two
processes of the same program differ by more than what is to be found. The API server has one core
to itself, engine and callers the other.

CPU per request is that of the API-server process and all its threads, exporter included, from the
kernel's accounting, for answers of two tokens one at a time: what a request costs beside its
tokens, and little else to drown it. (What an output costs is in `micro`.)

Throughput is that of eight streams at once with the lengths that vLLM's own serving benchmark has
by default, 1,024 tokens in and 128 out, ours switched off and on in short turns: a shared machine's
speed wanders by the second, which only many close pairs average out.

    python -m tests.benchmarks.vllm_server [--rounds 20] [--pairs 80]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.report import ROOT, Bound, interval, write
from tests.benchmarks.sink import Sink
from tests.benchmarks.switch.switch import MODES
from tests.services import vllm

VARIANTS = ("bare", "native", "byhand", "ours")
AT_ONCE, TOKENS = 8, 128
CPU_REQUESTS, CPU_TOKENS = 25, 2
LONG = " ".join(f"{n} waits" for n in range(188))
"""About 1,024 tokens of the tiny model's."""
API_CORE, ENGINE_CORE = 1, 0


def main() -> int:
    """Run the rounds and check the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=80)
    options = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as work:
        server = start(stack, Path(work))
        spent = [cpu_round(server, index) for index in range(options.rounds + 2)][2:]
        pairs = [throughput_pair(server, index) for index in range(options.pairs + 2)][2:]
    return write("vllm_server", *judged(spent, pairs))


def start(stack: ExitStack, work: Path) -> vllm.Vllm:
    """The server; it exports to a sink, which drops what it gets."""
    os.sched_setaffinity(0, {API_CORE, ENGINE_CORE})
    sink = stack.enter_context(Sink())
    overlay = work / "overlay"
    for plugin in (ROOT, ROOT / "tests/benchmarks/byhand", ROOT / "tests/benchmarks/switch"):
        vllm.overlay(plugin, overlay)
    server = stack.enter_context(
        vllm.Vllm.start(
            work,
            overlay=overlay,
            args=[f"--otlp-traces-endpoint={sink.url}/v1/traces"],
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_BSP_SCHEDULE_DELAY": "500",
                "OMP_NUM_THREADS": "1",
                "KMP_BLOCKTIME": "0",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            },
        )
    )
    pin(server.pid)
    os.sched_setaffinity(0, {ENGINE_CORE})
    return server


def switch(server: vllm.Vllm, mode: str) -> None:
    """From now on the server is traced in that way, or bare."""
    os.kill(server.pid, signal.SIGRTMIN + 1 + MODES.index(mode))
    time.sleep(0.05)


def cpu_round(server: vllm.Vllm, index: int) -> dict[str, float]:
    """Microseconds of CPU per request of the API server, for the same requests in each mode."""
    order = list(VARIANTS)
    random.Random(index).shuffle(order)
    found = {}
    for name in order:
        switch(server, name)
        before = cpu_ns(server.pid)
        asyncio.run(load(server, CPU_REQUESTS, CPU_TOKENS, at_once=1))
        time.sleep(0.7)  # the exporter works on what has just ended
        found[name] = (cpu_ns(server.pid) - before) / 1000 / CPU_REQUESTS
    print(index, {name: round(found[name]) for name in VARIANTS}, flush=True)
    return found


def throughput_pair(server: vllm.Vllm, index: int) -> dict[str, float]:
    """Seconds for the same requests bare and with ours, one right after the other."""
    found = {}
    for name in ("off", "on") if index % 2 else ("on", "off"):
        switch(server, "ours" if name == "on" else "bare")
        started = time.perf_counter()
        asyncio.run(load(server, AT_ONCE, TOKENS, at_once=AT_ONCE, prompt=LONG))
        found[name] = time.perf_counter() - started
    print(index, {name: round(each, 2) for name, each in found.items()}, flush=True)
    return found


def loss_of(pairs: Sequence[dict[str, float]]) -> float:
    """The share of throughput lost, over all pairs."""
    return 1 - sum(pair["off"] for pair in pairs) / sum(pair["on"] for pair in pairs)


def pin(api_server: int) -> None:
    """Give an API server one core, and its engine, which shares its process group, the other."""
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        if os.getpgid(pid) != api_server:
            continue
        core = API_CORE if pid == api_server else ENGINE_CORE
        for thread in (process / "task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def cpu_ns(pid: int) -> int:
    """Nanoseconds on a CPU of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


async def load(
    server: vllm.Vllm, requests: int, tokens: int, *, at_once: int, prompt: str = "tell me"
) -> None:
    """Send *requests* streaming chat requests, some of them at once."""
    host, port = server.url.removeprefix("http://").split(":")
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            await request(host, int(port), tokens, prompt)

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def request(host: str, port: int, tokens: int, prompt: str) -> None:
    """One request on a connection of its own, read to the end without looking at it."""
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"{secrets.token_hex(4)} {prompt}"}],
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
    spent: list[dict[str, float]], pairs: list[dict[str, float]]
) -> tuple[dict[str, Any], list[Bound]]:
    """The numbers, and their bounds."""
    added = {name: [row[name] - row["bare"] for row in spent] for name in VARIANTS}
    cost = {name: median(values) for name, values in added.items()}
    result = {
        "cpu_rounds": len(spent),
        "bare_cpu_us_per_request": median(row["bare"] for row in spent),
        "added_cpu_us_per_request": {
            name: {"median": cost[name], "ci95": interval(added[name])} for name in VARIANTS[1:]
        },
        "throughput_pairs": len(pairs),
        "requests_per_s": {
            name: AT_ONCE / median(pair[name] for pair in pairs) for name in ("off", "on")
        },
        "throughput_loss": {"all": loss_of(pairs), "ci95": interval(pairs, of=loss_of)},
    }
    upper = interval(pairs, of=loss_of, tail=0.05)[1]
    bounds = [
        Bound("throughput loss, upper 95 % bound", max(0.0, upper), 0.02),
        Bound("CPU per request, ours / native's one span", ratio(cost, "native"), 8),
        Bound("CPU per request, ours / by hand", ratio(cost, "byhand"), 1.2),
    ]
    return result, bounds


def ratio(cost: dict[str, float], other: str) -> float:
    """Our added CPU by another's; infinite, hence out of bounds, if that was not measurable."""
    return cost["ours"] / cost[other] if cost[other] > 0 else float("inf")


if __name__ == "__main__":
    sys.exit(main())
