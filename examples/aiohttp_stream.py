"""A client of one's own, with aiohttp: three lines make it a traced one.

Run it with `python examples/aiohttp_stream.py --url http://localhost:8000 --model MODEL`.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import aiohttp
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_llm


def line(span: ReadableSpan) -> str:
    """One printed line per span: phases with how they are known, the request with its outcome."""
    length = (span.end_time - span.start_time) / 1e6
    told = span.attributes.get("otel_llm.phase.source") or span.attributes.get("otel_llm.outcome")
    return f"\n{span.name:<24}{length:>9.1f} ms  {told}"


def show(line: str) -> None:
    """Print the piece of text in one server-sent event."""
    data = line.removeprefix("data: ")
    if data and data != "[DONE]":
        for choice in json.loads(data)["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)


async def main(url: str, model: str) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Where did the time go?"}],
        "max_tokens": 32,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with otel_llm.trace_request("chat", model=model, provider="vllm", side="client") as request:
        headers = request.headers()
        url = f"{url}/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as response,
        ):
            async for line in request.response(response).content:
                show(line.decode().strip())
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--model", default="MODEL")
    provider = TracerProvider()  # for OTLP, call otel_llm.configure(service_name="app") instead
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    otel_llm.instrument(engines=[], tracer_provider=provider)
    asyncio.run(main(**vars(parser.parse_args())))
