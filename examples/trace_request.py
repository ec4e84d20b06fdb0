"""Where one request of a toy engine spent its time. Needs no server and no backend.

Run it with `python examples/trace_request.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_llm
from otel_llm import Mark

TOKENS = 24


def decode() -> Iterator[str]:
    """A toy model: the first token takes 60 ms, each of the others 8 ms, and one 250 ms."""
    for index in range(TOKENS):
        time.sleep({0: 0.060, 16: 0.250}.get(index, 0.008))
        yield f"token{index} "


def answer(prompt: str) -> str:
    """Serve one request: preprocess, wait for a turn, prefill, decode, send the rest."""
    text = ""
    with otel_llm.trace_request("chat", model="toy-1b", provider="toy", side="server") as request:
        time.sleep(0.004)  # template and tokens
        request.usage(input_tokens=len(prompt.split()))
        request.mark(Mark.QUEUED)
        time.sleep(0.035)  # other requests are in front
        request.mark(Mark.SCHEDULED)
        for token in request.stream(decode(), tokens=lambda _token: 1):
            if not text:
                time.sleep(0.003)  # a busy event loop
                request.mark(Mark.FIRST_DELIVERED)
            text += token
        request.finish_reason("stop")
        time.sleep(0.002)  # usage record and end of the reply
    return text


def ledger(spans: tuple[ReadableSpan, ...]) -> Iterator[str]:
    """The lines of a table: one row per phase span, then the numbers of the request span."""
    request = next(span for span in spans if span.parent is None)
    total = request.attributes["otel_llm.e2e_us"]
    yield f"{request.name}: {request.attributes['otel_llm.outcome']}"
    yield f"{'phase':<12}{'start ms':>10}{'ms':>10}{'share':>8}  source"
    phases = [span for span in spans if span.name.startswith("llm.")]
    for span in sorted(phases, key=lambda span: span.start_time):
        start, us = span.start_time - request.start_time, (span.end_time - span.start_time) // 1000
        yield (
            f"{span.name.removeprefix('llm.'):<12}{start / 1e6:>10.1f}{us / 1e3:>10.1f}"
            f"{us / total:>8.1%}  {span.attributes['otel_llm.phase.source']}"
        )
    for name in ("unaccounted", "e2e", "ttft", "tpot", "itl_p50", "itl_max", "stall"):
        yield f"{name:<12}{request.attributes[f'otel_llm.{name}_us'] / 1e3:>20.1f}"


def main() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    otel_llm.instrument(engines=[], tracer_provider=provider)
    answer("Where did the time of the slowest one percent go?")
    print("\n".join(ledger(memory.get_finished_spans())))


if __name__ == "__main__":
    main()
