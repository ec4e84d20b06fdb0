"""Run by vLLM's own Python: its engine used without a server; prints the spans as JSON.

python vllm_direct.py offline|pooling|async MODEL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import otel_llm
from otel_llm.config import RUNTIME
from otel_llm.testing import captured_telemetry

captured = captured_telemetry()


def main(kind: str, model: str) -> None:
    """Do what *kind* says, and print what came of it."""
    otel_llm.instrument(**captured.providers)
    {"offline": offline, "pooling": pooling, "async": asynchronous}[kind](model)
    spans = [
        {
            "name": span.name,
            "id": span.context.span_id,
            "parent": span.parent.span_id if span.parent else None,
            "kind": span.kind.name,
            "status": span.status.status_code.name,
            "attributes": dict(span.attributes or {}),
        }
        for span in captured.spans
    ]
    print(json.dumps({"spans": spans, "engine": RUNTIME.engine}), flush=True)


def offline(model: str) -> None:
    """Prompts in lists, one with several answers, a chat, and one that is too long."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, **COMMON)
    some = SamplingParams(max_tokens=12, ignore_eos=True)
    llm.generate(["Tell me", "How long did it take?"], some, use_tqdm=False)
    llm.generate("Once", SamplingParams(max_tokens=4, n=3, ignore_eos=True), use_tqdm=False)
    llm.chat([{"role": "user", "content": "Hi"}], some, use_tqdm=False)
    try:
        llm.generate(["fine", "word " * 5000], some, use_tqdm=False)
    except ValueError as error:
        print(f"refused: {type(error).__name__}", file=sys.stderr)
    except Exception as error:
        if type(error).__name__ != "VLLMValidationError":
            raise


def pooling(model: str) -> None:
    """Embeddings and similarities."""
    from vllm import LLM

    llm = LLM(model, runner="pooling", **COMMON)
    llm.embed(["first", "second text"], use_tqdm=False)
    llm.score("query", ["one", "two", "three"], use_tqdm=False)


def asynchronous(model: str) -> None:
    """`AsyncLLM` in a script: to the end, closed early, and refused."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    async def scenario() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model, **COMMON))
        deltas = SamplingParams(max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        async for _ in engine.generate("Tell me", deltas, "whole"):
            pass
        closed: Any = engine.generate("Tell me", deltas, "closed")
        async for _ in closed:
            break
        await closed.aclose()
        try:
            async for _ in engine.generate("word " * 5000, deltas, "refused"):
                pass
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)
        engine.shutdown()

    asyncio.run(scenario())


COMMON: dict[str, Any] = {
    "served_model_name": "tiny",
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_seqs": 8,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
