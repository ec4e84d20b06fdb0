"""Where the time of a chat went, seen from `huggingface_hub.InferenceClient`.

Run it with `python examples/huggingface_chat.py --url http://localhost:8080` against a TGI server,
or any other that has `/v1/chat/completions`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from huggingface_hub import InferenceClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_llm

TOLD = ("gen_ai.usage.output_tokens", "otel_llm.ttft_us", "otel_llm.tpot_us", "otel_llm.e2e_us")


def ask(url: str, question: str) -> str:
    """Stream one chat."""
    client = InferenceClient(url)
    chunks = client.chat_completion([{"role": "user", "content": question}], stream=True)
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def lines(spans: tuple[ReadableSpan, ...]) -> Iterator[str]:
    """What the spans say: first the request, then its phases."""
    (request,) = [span for span in spans if "otel_llm.side" in span.attributes]
    yield f"{request.name}: {request.attributes['otel_llm.outcome']}"
    for name in TOLD:
        yield f"  {name:<28}{request.attributes.get(name, 'not known'):>12}"
    for span in spans:
        if span.name.startswith("llm."):
            yield f"  {span.name:<28}{(span.end_time - span.start_time) // 1000:>12} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8080", help="base URL of the server")
    parser.add_argument("--question", default="Why is the sky blue?")
    given = parser.parse_args()

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    otel_llm.instrument(engines=["huggingface"], tracer_provider=provider)

    print(ask(given.url, given.question))
    print("\n".join(lines(memory.get_finished_spans())))


if __name__ == "__main__":
    main()
