"""Recorder and emission without a server: what an output costs, and what a request costs.

Per output: vLLM's generator, passed through and watched, in nanoseconds and clock reads. Per
request: the whole life of a request span and its encoding, beside the same SDK calls made by hand
and the official encoder, with the shares of computing, SDK spans, SDK metrics and encoding.

    python -m tests.benchmarks.micro [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_llm.adapters.vllm.calls import VllmCall, watched
from otel_llm.clock import Anchor
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.summary import summary_attributes
from otel_llm.emit.telemetry import Telemetry
from otel_llm.export.encode import encoded
from otel_llm.timeline import Mark, RequestRecorder, Side, resolve
from tests.benchmarks.byhand.byhand import PHASE, PHASES, REQUEST, START, SUMMARY
from tests.benchmarks.report import Bound, write

OUTPUTS = 20_000
REQUESTS = 150


class Dropping(SpanExporter):
    """An exporter that does nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        """Drop the spans."""
        return SpanExportResult.SUCCESS


def main() -> int:
    """Measure in interleaved rounds and check the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    per_output = measured(
        {"bare": bare_outputs, "ours": watched_outputs, "clock": clock_reads}, OUTPUTS, rounds
    )
    per_request = measured(requests(), REQUESTS, rounds)
    clock = per_output["clock"]
    added = per_output["ours"] - per_output["bare"]
    ours = per_request["ours"] + per_request["our encoding"]
    ratio = ours / (per_request["by hand"] + per_request["official encoding"])
    result = {
        "rounds": rounds,
        "per_output_ns": {**per_output, "added": added, "added_clock_reads": added / clock},
        "per_request_us": {name: value / 1000 for name, value in per_request.items()},
    }
    bounds = [
        Bound("added CPU per output, us", added / 1000, 1.0),
        Bound("per request with its encoding, ours / by hand", ratio, 1.2),
    ]
    return write("micro", result, bounds)


def measured(cases: dict[str, Callable[[int], None]], times: int, rounds: int) -> dict[str, float]:
    """Nanoseconds of thread CPU per item, the median over interleaved rounds."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            started = time.thread_time_ns()
            case(times)
            found[name].append((time.thread_time_ns() - started) / times)
    return {name: median(values[1:]) for name, values in found.items()}


OUTPUT = SimpleNamespace(
    outputs=[SimpleNamespace(index=0, token_ids=[1], finish_reason="length")],
    metrics=SimpleNamespace(),
    prompt_token_ids=[1] * 10,
    num_cached_tokens=0,
    finished=False,
)


async def outputs(count: int) -> AsyncIterator[Any]:
    """A generator like vLLM's, that has its outputs ready."""
    for _ in range(count):
        yield OUTPUT


def bare_outputs(count: int) -> None:
    """Read all outputs."""

    async def run() -> None:
        async for _ in outputs(count):
            pass

    asyncio.run(run())


def watched_outputs(count: int) -> None:
    """Read all outputs through ours."""
    live = SimpleNamespace(recorder=RequestRecorder(Side.SERVER), finished=False)

    async def run() -> None:
        async for _ in watched(outputs(count), live, VllmCall(1, 0, delta=True)):  # type: ignore[arg-type]
            pass

    asyncio.run(run())


def clock_reads(count: int) -> None:
    """Read the clock."""
    read = time.monotonic_ns
    for _ in range(count):
        read()


def requests() -> dict[str, Callable[[int], None]]:
    """The whole request ours and by hand, and its parts."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    meters = MeterProvider([InMemoryMetricReader()])
    telemetry = Telemetry(provider, meters)
    tracer, meter = provider.get_tracer("byhand"), meters.get_meter("byhand")
    histograms = [meter.create_histogram(f"by.hand.{n}") for n in range(4)]
    done = one_request(telemetry)
    assert done.timeline is not None
    still_open = recorded(telemetry)
    still_open.recorder.mark(Mark.FINISHED)
    span = done.span

    def spans_by_hand() -> None:
        span_by_hand(tracer)

    def metrics_by_hand() -> None:
        record_by_hand(histograms, trace.set_span_in_context(span))

    def all_by_hand() -> None:
        spans_by_hand()
        metrics_by_hand()

    def compute() -> None:
        summary_attributes(resolve(still_open.recorder.evidence()), telemetry.settings)

    batch = exported_spans()
    cases = {
        "ours": lambda: one_request(telemetry),
        "by hand": all_by_hand,
        "computing": compute,
        "SDK spans": spans_by_hand,
        "SDK metrics": metrics_by_hand,
        "our encoding": lambda: list(encoded(batch)),
        "official encoding": lambda: encode_spans(batch).SerializePartialToString(),
    }
    return {name: repeated(case) for name, case in cases.items()}


def repeated(case: Callable[[], Any]) -> Callable[[int], None]:
    """*case*, called as often as asked."""

    def run(times: int) -> None:
        for _ in range(times):
            case()

    return run


def exported_spans() -> Any:
    """The spans of one request, as the exporter gets them."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider.add_span_processor(SimpleSpanProcessor(kept))
    one_request(Telemetry(provider, MeterProvider()))
    return kept.get_finished_spans()


INFO = RequestInfo(
    "chat",
    "vllm",
    "tiny",
    "127.0.0.1",
    8000,
    {
        "http.route": "/v1/chat/completions",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.stream": True,
    },
)


def recorded(telemetry: Telemetry) -> LiveRequest:
    """A streamed vLLM request just before its end."""
    now = time.monotonic_ns() - 1_000_000
    live = telemetry.start(INFO, Side.SERVER, anchor=Anchor(time.time_ns() - 1_000_000, now))
    recorder = live.recorder
    recorder.streaming = True
    call = VllmCall(1, now, delta=True)
    recorder.calls.append(call)
    recorder.expected_sequences = 1
    recorder.mark(Mark.QUEUED, now)
    seconds = now / 1e9
    call.last = SimpleNamespace(
        outputs=OUTPUT.outputs,
        prompt_token_ids=OUTPUT.prompt_token_ids,
        num_cached_tokens=0,
        metrics=SimpleNamespace(
            queued_ts=seconds,
            scheduled_ts=seconds + 1e-5,
            first_token_ts=seconds + 2e-5,
            last_token_ts=seconds + 4e-5,
            num_generation_tokens=20,
            num_preemptions=0,
        ),
    )
    recorder.lane().stamps.extend(range(now, now + 20_000, 1000))
    live.annotate({SUMMARY_ID: "chatcmpl-b03c1c1a3fd8d376"})
    recorder.mark(Mark.FIRST_DELIVERED, now + 30_000)
    recorder.ending(status=200)
    return live


SUMMARY_ID = "otel_llm.request.id"


def one_request(telemetry: Telemetry) -> LiveRequest:
    """A whole request, ours."""
    live = recorded(telemetry)
    live.finish()
    return live


def span_by_hand(tracer: trace.Tracer) -> None:
    """The request span and its phases, by SDK calls."""
    now = time.time_ns()
    span = tracer.start_span("chat tiny", attributes=START, start_time=now)
    context = trace.set_span_in_context(span)
    span.set_attributes(SUMMARY)
    for phase in PHASES:
        attributes = {"otel_llm.phase.source": "reported"}
        child = tracer.start_span(f"llm.{phase}", context, attributes=attributes, start_time=now)
        child.end(now + 1000)
    span.end(now)


def record_by_hand(histograms: list[Any], context: Any) -> None:
    """The metric records of one request, by SDK calls."""
    for histogram in histograms[:3]:
        histogram.record(0.1, REQUEST, context)
    for phase in PHASES:
        histograms[3].record(0.1, {"phase": phase, **PHASE}, context)


if __name__ == "__main__":
    sys.exit(main())
