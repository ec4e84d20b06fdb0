"""A FastAPI server with an engine of one's own: the middleware's request span, the engine's marks.

Run it with `python examples/fastapi_engine.py`, then ask it:
curl -N localhost:8000/v1/chat/completions -H 'content-type: application/json' -d \
'{"model": "toy-1b", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_llm
from otel_llm.emit.live import current_request
from otel_llm.timeline import Mark, RequestRecorder, Side

app = FastAPI()
app.add_middleware(otel_llm.InferenceMiddleware, provider="toy")
TURN = asyncio.Semaphore(1)  # the engine computes one request at a time


async def generate(prompt: str, tokens: int) -> AsyncIterator[str]:
    """A toy engine that tells the open request, if there is one, what happens to it."""
    live = current_request()
    recorder = live.recorder if live else RequestRecorder(Side.SERVER)
    lane = recorder.lane()
    recorder.usage(input=len(prompt.split()))
    recorder.mark(Mark.QUEUED)
    async with TURN:
        recorder.mark(Mark.SCHEDULED)
        for index in range(tokens):
            await asyncio.sleep(0.008 if index else 0.060)
            lane.stamps.append(time.monotonic_ns())  # one clock read, one append per output
            recorder.usage(output=index + 1)
            yield f"token{index} "
    recorder.finish_reasons = ("length",)  # without it the stream counts as incomplete


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> StreamingResponse:
    """Answer with server-sent events."""

    async def events() -> AsyncIterator[str]:
        async for text in generate(body["messages"][-1]["content"], body.get("max_tokens", 16)):
            yield f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def line(span: ReadableSpan) -> str:
    """One printed line per span: its length and what the summary says."""
    length = (span.end_time - span.start_time) / 1e6
    named = ("outcome", "ttft_us", "tpot_us", "phase.source")
    found = [f"{key}={span.attributes.get(f'otel_llm.{key}')}" for key in named]
    shown = " ".join(each for each in found if not each.endswith("=None"))
    return f"{span.name:<28}{length:>8.1f} ms  {shown}".rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    provider = TracerProvider()  # for OTLP, call otel_llm.configure(service_name="toy") instead
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    otel_llm.instrument(engines=[], tracer_provider=provider)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")
