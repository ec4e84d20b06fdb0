"""TGI's `/generate` and `/generate_stream` through its own client, and what each of them tells.

A plain reply states in its headers how long it waited in the queue; a streamed one does not, but
shows when its first token came. Run it with `python examples/tgi_generate.py --url URL` where
`text_generation` is installed.
"""

from __future__ import annotations

import argparse

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from text_generation import Client

import otel_llm

TOLD = ("queue", "first_token", "decode", "e2e")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8080", help="base URL of the server")
    parser.add_argument("--prompt", default="Why is the sky blue?")
    given = parser.parse_args()

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    otel_llm.instrument(engines=["text_generation"], tracer_provider=provider)

    client = Client(given.url)
    print(client.generate(given.prompt).generated_text)
    tokens = [item.token for item in client.generate_stream(given.prompt)]
    print("".join(token.text for token in tokens if not token.special))

    requests = [span for span in memory.get_finished_spans() if "otel_llm.side" in span.attributes]
    for way, span in zip(("plain", "streamed"), requests, strict=True):
        times = [f"{name} {span.attributes.get(f'otel_llm.{name}_us', '-')}" for name in TOLD]
        print(f"{way:<10}{span.attributes['otel_llm.outcome']:<6}us: {', '.join(times)}")


if __name__ == "__main__":
    main()
