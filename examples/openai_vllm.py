"""OpenAI's client against a vLLM, or any other server that speaks its API.

A vLLM that was started with `--enable-per-request-metrics` states its queue, prefill and decode.

Run it with `python examples/openai_vllm.py --url http://localhost:8000 --model MODEL`.
"""

from __future__ import annotations

import argparse

import openai
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_llm


def line(span: ReadableSpan) -> str:
    """One printed line per span: phases with how they are known, the request with its outcome."""
    length = (span.end_time - span.start_time) / 1e6
    told = span.attributes.get("otel_llm.phase.source") or span.attributes.get("otel_llm.outcome")
    return f"\n{span.name:<24}{length:>9.1f} ms  {told}"


def main(url: str, model: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Where did the time go?"}],
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},  # without it nobody counts the tokens
        )
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--model", default="MODEL")
    provider = TracerProvider()  # for OTLP, call otel_llm.configure(service_name="app") instead
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    otel_llm.instrument(engines=["openai"], tracer_provider=provider)
    main(**vars(parser.parse_args()))
