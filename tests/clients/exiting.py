"""A process that leaves with a stream open: `python -m tests.clients.exiting URL CHUNKS`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import openai
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import otel_llm
from otel_llm import semconv
from tests.clients.builders import STREAMED


class Printing(SpanExporter):
    """Prints the request spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            if span.attributes and semconv.OUTCOME in span.attributes:
                print(span.name, span.attributes[semconv.OUTCOME])
        return SpanExportResult.SUCCESS


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Printing()))
    otel_llm.instrument(engines=["openai"], tracer_provider=provider)
    client = openai.OpenAI(base_url=sys.argv[1], api_key="secret")
    opened = client.chat.completions.create(**STREAMED)  # type: ignore[call-overload]
    for _ in range(int(sys.argv[2])):
        next(opened)
    print("begun", flush=True)
