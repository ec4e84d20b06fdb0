"""The spans and metric records of one streamed vLLM request, from constants, by SDK calls alone.

What a careful engineer would write who knows every value in advance: the reference for what
measuring and computing them costs.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any

START = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "otel_llm.side": "server",
    "gen_ai.request.model": "tiny",
    "server.address": "127.0.0.1",
    "server.port": 8000,
    "http.route": "/v1/chat/completions",
    "gen_ai.request.max_tokens": 128,
    "gen_ai.request.stream": True,
}
SUMMARY = {
    "otel_llm.outcome": "ok",
    "gen_ai.response.finish_reasons": ("length",),
    "otel_llm.e2e_us": 159541,
    "otel_llm.unaccounted_us": 0,
    "otel_llm.ttft_us": 101560,
    "otel_llm.tpot_us": 3006,
    "otel_llm.tokens_per_output": 1.0,
    "otel_llm.preemptions": 0,
    "otel_llm.preprocess_us": 91740,
    "otel_llm.queue_us": 31,
    "otel_llm.prefill_us": 9789,
    "otel_llm.first_token_us": 1466,
    "otel_llm.decode_us": 55646,
    "otel_llm.delivery_us": 869,
    "otel_llm.sources": "preprocess=derived;queue=reported;prefill=reported;"
    "first_token=derived;decode=derived;delivery=derived",
    "gen_ai.usage.input_tokens": 10,
    "gen_ai.usage.output_tokens": 128,
    "gen_ai.usage.cache_read.input_tokens": 0,
    "otel_llm.itl_p50_us": 2885,
    "otel_llm.itl_p99_us": 5181,
    "otel_llm.itl_max_us": 5181,
    "otel_llm.stalls": 0,
    "otel_llm.stall_us": 0,
    "otel_llm.request.id": "chatcmpl-b03c1c1a3fd8d376",
    **{
        f"otel_llm.{when}.{name}": number
        for when in ("queued", "finished")
        for number, name in enumerate(("running", "waiting", "kv_cache_percent", "batch_tokens"))
    },
}
HTTP = {
    "http.request.method": "POST",
    "http.route": "/v1/chat/completions",
    "url.path": "/v1/chat/completions",
    "url.scheme": "http",
    "network.protocol.version": "1.1",
    "gen_ai.operation.name": "chat",
    "server.address": "127.0.0.1",
    "server.port": 8000,
    "gen_ai.request.model": "tiny",
}
PHASES = ("preprocess", "queue", "prefill", "first_token", "decode", "delivery")
REQUEST = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "tiny",
}
PHASE = {
    "gen_ai.operation.name": "chat",
    "otel_llm.side": "server",
    "gen_ai.request.model": "tiny",
}


class Records:
    """The providers, and the records of one request."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        self.tracer = tracers.get_tracer("byhand")
        meter = meters.get_meter("byhand")
        self.histograms = [meter.create_histogram(f"by.hand.{n}", "s") for n in range(3)]
        self.phase = meter.create_histogram("by.hand.phase", "s")

    def start(self, headers: list[tuple[bytes, bytes]]) -> Any:
        """Both spans, below the caller's."""
        from opentelemetry import propagate, trace
        from opentelemetry.trace import SpanKind

        now = time.time_ns()
        fields = {name.decode(): value.decode() for name, value in headers}
        context = propagate.extract(fields)
        server = self.tracer.start_span(
            "POST /v1/chat/completions", context, SpanKind.SERVER, HTTP, start_time=now
        )
        request = self.tracer.start_span(
            "chat tiny",
            trace.set_span_in_context(server, context),
            attributes=START,
            start_time=now,
        )
        return server, request

    def end(self, server: Any, request: Any) -> None:
        """The summary, the phases, the metrics, and both ends."""
        from opentelemetry import trace

        context = trace.set_span_in_context(request)
        now = time.time_ns()
        for histogram in self.histograms:
            histogram.record(0.1, REQUEST, context)
        for phase in PHASES:
            self.phase.record(0.1, {"phase": phase, **PHASE}, context)
        request.set_attributes(SUMMARY)
        for phase in PHASES:
            attributes = {"otel_llm.phase.source": "reported"}
            span = self.tracer.start_span(
                f"llm.{phase}", context, attributes=attributes, start_time=now
            )
            span.end(now + 1000)
        request.end(now)
        server.set_attribute("http.response.status_code", 200)
        server.end(now)


class Middleware:
    """Wraps the application: body first, spans around, records at the last byte."""

    active = False

    def __init__(self, app: Any, records: Records) -> None:
        self.app = app
        self.records = records

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        chat = scope["type"] == "http" and scope["path"].startswith("/v1/chat")
        if not (self.active and chat):
            await self.app(scope, receive, send)
            return
        first = await receive()
        json.loads(first["body"])
        server, request = self.records.start(scope["headers"])
        messages = [first]

        async def again() -> Any:
            return messages.pop() if messages else await receive()

        async def out(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.records.end(server, request)

        await self.app(scope, again, out)


def plugin() -> None:
    """Add the middleware to vLLM's application."""
    import fastapi

    original = fastapi.FastAPI.build_middleware_stack

    @functools.wraps(original)
    def build(app: Any) -> Any:
        from starlette.middleware import Middleware as Row

        args = getattr(app.state, "args", None)
        if hasattr(args, "served_model_name") and not hasattr(app.state, "byhand"):
            app.state.byhand = Records()
            app.user_middleware.insert(0, Row(Middleware, records=app.state.byhand))
        return original(app)

    fastapi.FastAPI.build_middleware_stack = build  # type: ignore[method-assign]
