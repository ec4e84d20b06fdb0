"""The instrumentations that are compared, and how each is switched on in its own process.

All get the same pipeline: every trace sampled, batches to exporters that drop them, metrics to a
reader that is not collected while time is taken. Content capture is off wherever it can be.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Opened = Callable[[], Iterable[Any]]
OpenedLater = Callable[[], Awaitable[AsyncIterable[Any]]]


@dataclass
class Pipeline:
    """Providers, and in memory what they were given; `spans` is None while time is taken."""

    tracers: Any
    meters: Any
    loggers: Any
    reader: Any
    spans: Any
    processor: Callable[[], Any]


class Peer:
    """An instrumentation that is switched on; of one that wraps calls by hand, the wrappers."""

    module = "openai"
    """Where it wants `OpenAI` imported from."""
    pipeline: Pipeline | None = None

    def sync(self, library: str, call: Opened) -> Iterable[Any]:
        """The stream that the application reads."""
        return call()

    async def later(self, library: str, call: OpenedLater) -> AsyncIterable[Any]:
        """The stream that the asynchronous application reads."""
        return await call()


@dataclass(frozen=True)
class Row:
    """A peer as it is compared.

    `environment` is where it is installed, `libraries` are the clients that it knows. `metrics`
    says that it writes metrics beside a span, `gaps` for which clients it records both the time to
    the first token and the gaps after it, `spans` how many spans a streamed call has.
    """

    switch_on: Callable[[bool], Peer]
    environment: str = "base"
    libraries: tuple[str, ...] = ("openai",)
    metrics: bool = False
    gaps: tuple[str, ...] = ()
    spans: int = 1
    ours: bool = False


def pipeline(
    in_memory: bool, *, sampled: bool = True, metered: bool = True, install: bool = True
) -> Pipeline:
    """The pipeline of this process.

    Args:
        in_memory: Keep spans to be looked at, and do not batch them.
        sampled: Sample every trace, or none.
        metered: Give a meter provider that works, or one that does nothing.
        install: Make its providers the global ones.
    """
    from opentelemetry import _logs, metrics, trace
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    spans = InMemorySpanExporter() if in_memory else None

    def processor() -> Any:
        return SimpleSpanProcessor(spans) if spans else BatchSpanProcessor(dropping())

    tracers = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    tracers.add_span_processor(processor())
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader]) if metered else metrics.NoOpMeterProvider()
    loggers = LoggerProvider()
    if install:
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(meters)
        _logs.set_logger_provider(loggers)
    return Pipeline(tracers, meters, loggers, reader, spans, processor)


def dropping() -> Any:
    """An exporter that does nothing."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Dropping(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    return Dropping()


def bare(in_memory: bool) -> Peer:
    """No instrumentation."""
    return Peer()


def ours(in_memory: bool) -> Peer:
    """otel_llm, from the tree."""
    return instrumented_by_ours(pipeline(in_memory))


def ours_off(in_memory: bool) -> Peer:
    """otel_llm with nothing to do: no trace sampled, no metrics."""
    return instrumented_by_ours(pipeline(in_memory, sampled=False, metered=False))


def instrumented_by_ours(made: Pipeline) -> Peer:
    """otel_llm on that pipeline, until `otel_llm.uninstrument()`."""
    import otel_llm

    peer = Peer()
    peer.pipeline = made
    otel_llm.instrument(
        engines=["openai", "ollama"], tracer_provider=made.tracers, meter_provider=made.meters
    )
    return peer


def by_hand(in_memory: bool) -> Peer:
    """The same spans and records by SDK calls."""
    from tests.benchmarks.clients.byhand import ByHand

    return ByHand(pipeline(in_memory))


def openllmetry(in_memory: bool) -> Peer:
    """OpenLLMetry."""
    os.environ["TRACELOOP_TRACE_CONTENT"] = "false"
    from opentelemetry.instrumentation.ollama import OllamaInstrumentor
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    return _instrumented(in_memory, OpenAIInstrumentor, OllamaInstrumentor)


def genai(in_memory: bool) -> Peer:
    """OpenTelemetry's own instrumentation for openai."""
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    return _instrumented(in_memory, OpenAIInstrumentor)


def openai_v2(in_memory: bool) -> Peer:
    """OpenTelemetry's instrumentation for openai before that."""
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    return _instrumented(in_memory, OpenAIInstrumentor)


def _instrumented(in_memory: bool, *instrumentors: Any) -> Peer:
    peer = Peer()
    peer.pipeline = made = pipeline(in_memory)
    for each in instrumentors:
        each().instrument(
            tracer_provider=made.tracers, meter_provider=made.meters, logger_provider=made.loggers
        )
    return peer


def openinference(in_memory: bool) -> Peer:
    """OpenInference; it writes no metrics."""
    from openinference.instrumentation import TraceConfig
    from openinference.instrumentation.ollama import OllamaInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    config = TraceConfig(hide_inputs=True, hide_outputs=True)
    for each in (OpenAIInstrumentor, OllamaInstrumentor):
        each().instrument(tracer_provider=peer.pipeline.tracers, config=config)
    return peer


def openlit(in_memory: bool) -> Peer:
    """OpenLIT, without the instrumentation of HTTP that comes with it."""
    os.environ["OPENLIT_TELEMETRY_ENABLED"] = "false"
    peer = Peer()
    peer.pipeline = pipeline(in_memory)
    import openlit as library
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

    # Otherwise it asks the network for prices.
    prices = Path(tempfile.mkdtemp()) / "prices.json"
    prices.write_text('{"chat": {}, "embeddings": {}, "images": {}, "audio": {}}')
    library.init(pricing_json=str(prices), capture_message_content=False, collect_gpu_stats=False)
    HTTPXClientInstrumentor().uninstrument()
    return peer


def langfuse(in_memory: bool) -> Peer:
    """Langfuse, with its own processor only; content is masked, for it has no switch."""
    from langfuse import Langfuse
    from opentelemetry.sdk.trace import TracerProvider

    peer = Peer()
    peer.module = "langfuse.openai"
    peer.pipeline = made = pipeline(in_memory)
    made.tracers = TracerProvider()
    if in_memory:
        made.tracers.add_span_processor(made.processor())
    peer.client = Langfuse(  # type: ignore[attr-defined]
        public_key="pk-lf-offline",
        secret_key="sk-lf-offline",  # noqa: S106 - nobody is asked
        base_url="http://127.0.0.1:9",
        tracer_provider=made.tracers,
        span_exporter=dropping(),
        mask=lambda *, data, **_: None,
    )
    return peer


def logfire(in_memory: bool) -> Peer:
    """Logfire, which configures providers itself; content is always captured."""
    import logfire as library
    from opentelemetry import trace
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    peer = Peer()
    peer.pipeline = made = pipeline(in_memory, install=False)
    made.reader = InMemoryMetricReader()
    library.configure(
        send_to_logfire=False,
        console=False,
        inspect_arguments=False,
        additional_span_processors=[made.processor()],
        metrics=library.MetricsOptions(additional_readers=[made.reader]),
    )
    library.instrument_openai()
    made.tracers = trace.get_tracer_provider()
    return peer


BOTH = ("openai", "ollama")
ROWS: dict[str, Row] = {
    "bare": Row(bare, libraries=BOTH),
    "by_hand": Row(by_hand, libraries=BOTH, ours=True),
    "ours": Row(ours, libraries=BOTH, metrics=True, gaps=BOTH, ours=True),
    "openllmetry": Row(openllmetry, "openllmetry", BOTH, metrics=True),
    "openlit": Row(openlit, "openlit", BOTH, metrics=True, gaps=BOTH),
    "openinference": Row(openinference, "openinference", BOTH),
    "genai": Row(genai, "genai", metrics=True, gaps=("openai",)),
    "openai_v2": Row(openai_v2, "openai_v2", metrics=True),
    "langfuse": Row(langfuse, "langfuse"),
    "logfire": Row(logfire, "logfire", spans=2),
}
"""Every row of the tables by its name."""
PEERS = tuple(name for name, row in ROWS.items() if name != "bare" and not row.ours)
EXTRA = {"ours_off": Row(ours_off, libraries=BOTH, ours=True)}
"""Asked one question each, and in no table."""


def row(name: str) -> Row:
    """The row of that name; raises `KeyError` if there is none."""
    return ROWS.get(name) or EXTRA[name]
