"""Ollama's client: where a chat spent its time, from loading the model to the last token.

Run it with `python examples/ollama_chat.py --url http://localhost:11434 --model llama3.2`.
"""

from __future__ import annotations

import argparse

import ollama
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_llm


def line(span: ReadableSpan) -> str:
    """One printed line per span: phases with how they are known, the request with its outcome."""
    length = (span.end_time - span.start_time) / 1e6
    told = span.attributes.get("otel_llm.phase.source") or span.attributes.get("otel_llm.outcome")
    return f"\n{span.name:<24}{length:>9.1f} ms  {told}"


def main(url: str, model: str) -> None:
    with ollama.Client(url) as client:
        messages = [{"role": "user", "content": "Where did the time go?"}]
        for part in client.chat(model, messages, stream=True, options={"num_predict": 32}):
            print(part.message.content, end="", flush=True)
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://localhost:11434")
    parser.add_argument("--model", default="llama3.2")
    provider = TracerProvider()  # for OTLP, call otel_llm.configure(service_name="app") instead
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    otel_llm.instrument(engines=["ollama"], tracer_provider=provider)
    main(**vars(parser.parse_args()))
