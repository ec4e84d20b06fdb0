"""What the tracing proxy costs, beside a plain pass-through of httpx and Starlette, and nginx.

All proxies stand side by side before one upstream and take turns, in random order. They have one
core to themselves, one at a time; the upstream and the clients have the other.

CPU per chunk is that of the proxy's process and all its threads, exporter included, from the
kernel's accounting, for streams of 200 chunks, 16 at once, at a pace that keeps none of them busy:
a proxy that falls behind passes several chunks at a time, and looks cheap. What a request costs
beside its chunks is in it. TTFT is that of one request at a time on a kept connection, to an
upstream that answers at once.

    python -m tests.benchmarks.proxy [--rounds 20] [--turns 400] [--nginx PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.report import ROOT, Bound, interval, write
from tests.benchmarks.sink import Sink
from tests.services.process import Service, free_port, listening

STREAMS, CHUNKS, GAP_S = 16, 200, 0.004
SHORT = 3
PROXY_CORE, OTHER_CORE = 1, 0
VARIANTS = ("direct", "nginx", "plain", "ours", "ours_off")
TEXT = "word " * 4
EVENT = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":'
    b'[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % TEXT.encode()
)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"') + b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
NGINX = """
daemon off; master_process off; error_log stderr crit; pid {work}/pid;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/f;
  uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  upstream engine {{ server {upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $http_host; proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""


def main() -> int:
    """Run the rounds and check the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--nginx", default=shutil.which("nginx"))
    parser.add_argument("--serve", choices=["upstream", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve_upstream(options.port) if options.serve == "upstream" else serve_plain(options)
        return 0
    with ExitStack() as stack, tempfile.TemporaryDirectory() as work:
        proxies = start(stack, Path(work), options.nginx)
        os.sched_setaffinity(0, {OTHER_CORE})
        spent = [cpu_round(proxies, index) for index in range(options.rounds + 2)][2:]
        waited = asyncio.run(turns(proxies, options.turns))
    return write("proxy", *judged(spent, waited))


class Proxy:
    """One way to the upstream: the process that stands between, if any, and its port."""

    def __init__(self, port: int, service: Service | None = None) -> None:
        self.port = port
        self.service = service

    def cpu_ns(self) -> int:
        """Nanoseconds on a CPU of all threads of the process."""
        if self.service is None:
            return 0
        tasks = Path(f"/proc/{self.service.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)


def start(stack: ExitStack, work: Path, nginx: str | None) -> dict[str, Proxy]:
    """The upstream and the proxies, all running."""
    sink = stack.enter_context(Sink())
    upstream = free_port()

    def service(name: str, command: list[str], port: int, core: int, **env: str) -> Proxy:
        found = Service(command, log=work / f"{name}.log", env=env, cwd=ROOT)
        stack.enter_context(found)
        found.wait_ready(listening(port), limit=30)
        for thread in Path(f"/proc/{found.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})
        return Proxy(port, found)

    ourselves = [sys.executable, "-m", "tests.benchmarks.proxy"]
    words = [*ourselves, "--serve", "upstream", "--port", str(upstream)]
    service("upstream", words, upstream, OTHER_CORE)
    found = {"direct": Proxy(upstream)}
    if nginx is not None:
        port = free_port()
        conf = work / "nginx.conf"
        conf.write_text(NGINX.format(work=work, upstream=f"127.0.0.1:{upstream}", port=port))
        words = [nginx, "-c", str(conf), "-p", str(work)]
        found["nginx"] = service("nginx", words, port, PROXY_CORE)
    url = f"http://127.0.0.1:{upstream}"
    port = free_port()
    words = [*ourselves, "--serve", "plain", "--port", str(port), "--to", url]
    found["plain"] = service("plain", words, port, PROXY_CORE)
    for name in ("ours", "ours_off"):
        port = free_port()
        words = [sys.executable, "-c", "from otel_llm.cli import main; main()", "proxy"]
        words += ["--engine", "vllm", "--upstream", url, "--listen", f"127.0.0.1:{port}"]
        words += ["--admin", "127.0.0.1:0"]
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_BSP_SCHEDULE_DELAY": "500"}
        if name == "ours_off":
            env["OTEL_LLM_DISABLED"] = "1"
        found[name] = service(name, words, port, PROXY_CORE, **env)
    return found


def cpu_round(proxies: Mapping[str, Proxy], index: int) -> dict[str, float]:
    """Microseconds of CPU per chunk of each proxy, for the same streams."""
    order = [name for name in proxies if name != "direct"]
    random.Random(index).shuffle(order)
    found = {}
    for name in order:
        before = proxies[name].cpu_ns()
        asyncio.run(streams(proxies[name].port))
        time.sleep(0.7)  # the exporter works on what has just ended
        found[name] = (proxies[name].cpu_ns() - before) / 1000 / (STREAMS * CHUNKS)
    print(index, {name: round(found[name], 1) for name in VARIANTS if name in found}, flush=True)
    return found


async def streams(port: int) -> None:
    """All streams at once, each on a connection of its own."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked(CHUNKS, GAP_S))
        seen = b""
        while not seen.endswith(END):
            piece = await reader.read(65_536)
            assert piece, seen
            seen = seen[-64:] + piece
        writer.close()

    await asyncio.gather(*(one() for _ in range(STREAMS)))


async def turns(proxies: Mapping[str, Proxy], count: int) -> dict[str, list[float]]:
    """Milliseconds to the first chunk through each, one request after the other."""
    found: dict[str, list[float]] = {name: [] for name in proxies}
    ends = {name: await asyncio.open_connection("127.0.0.1", p.port) for name, p in proxies.items()}
    source = random.Random(3)
    for _ in range(count + 20):
        for name in source.sample(list(ends), len(ends)):
            reader, writer = ends[name]
            began = time.perf_counter()
            writer.write(asked(SHORT, 0.0005))
            await reader.readuntil(b"data: ")
            found[name].append((time.perf_counter() - began) * 1e3)
            await reader.readuntil(END)
    for _, writer in ends.values():
        writer.close()
    return {name: each[20:] for name, each in found.items()}


def asked(chunks: int, gap_s: float) -> bytes:
    """A chat request; the upstream reads from a header how to answer."""
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi " * 50}]}
    data = json.dumps(body).encode()
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        f"X-Answer: {chunks} {gap_s}\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def serve_upstream(port: int) -> None:
    """Answer with as many chunks as asked for, in the pace asked for."""

    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    event, last = chunk(EVENT), chunk(LAST) + END

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                text = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in text.split("\r\n")[1:-2])
                await reader.readexactly(int(fields["content-length"]))
                count, gap_s = fields["x-answer"].split()
                writer.write(head + event)
                for _ in range(int(count) - 2):
                    await asyncio.sleep(float(gap_s))
                    writer.write(event)
                await asyncio.sleep(float(gap_s))
                writer.write(last)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


def serve_plain(options: Any) -> None:
    """The proxy that one writes in ten lines, with uvicorn set as ours is."""
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    client = httpx.AsyncClient(base_url=options.to, timeout=None)  # noqa: S113 - as ours
    hops = {b"connection", b"transfer-encoding", b"keep-alive"}

    async def passed(request: Request) -> StreamingResponse:
        headers = [each for each in request.headers.raw if each[0] not in hops]
        asked = client.build_request(
            request.method, request.url.path, headers=headers, content=await request.body()
        )
        answer = await client.send(asked, stream=True)
        response = StreamingResponse(
            answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = [each for each in answer.headers.raw if each[0].lower() not in hops]
        return response

    app = Starlette(routes=[Route("/{path:path}", passed, methods=["GET", "POST"])])
    uvicorn.run(
        app, port=options.port, log_level="critical", access_log=False, ws="none", lifespan="off",
        timeout_keep_alive=60,
    )  # fmt: skip


def judged(
    spent: list[dict[str, float]], waited: dict[str, list[float]]
) -> tuple[dict[str, Any], list[Bound]]:
    """The numbers, and their bounds."""
    names = [name for name in VARIANTS if name in waited]
    ratios = [row["ours"] / row["plain"] for row in spent]
    later = [a - b for a, b in zip(waited["ours"], waited["plain"], strict=True)]
    cost = {name: median(row[name] for row in spent) for name in names if name != "direct"}
    first = {name: median(waited[name]) for name in names}
    result = {
        "rounds": len(spent),
        "streams": STREAMS,
        "chunks": CHUNKS,
        "cpu_us_per_chunk": cost,
        "cpu_ours_by_plain": {"median": median(ratios), "ci95": interval(ratios)},
        "ttft_ms": first,
        "ttft_ours_over_plain_ms": {"median": median(later), "ci95": interval(later)},
    }
    print({name: round(value, 1) for name, value in cost.items()})
    print({name: round(value, 3) for name, value in first.items()})
    bounds = [
        Bound("CPU per chunk, ours / plain", median(ratios), 1.15),
        Bound("median TTFT over plain, ms", max(0.0, first["ours"] - first["plain"]), 0.3),
    ]
    return result, bounds


if __name__ == "__main__":
    sys.exit(main())
