"""Run by vLLM's own Python: its engine used without a server; prints the spans as JSON.

python vllm_direct.py offline|pooling|encoding|async|roles MODEL [ENDPOINT]

ENDPOINT is where vLLM's own spans of `offline` go.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

import otel_llm
from otel_llm.config import RUNTIME
from otel_llm.testing import captured_telemetry

captured = captured_telemetry()


def main(kind: str, model: str, *endpoint: str) -> None:
    """Do what *kind* says, and print what came of it."""
    otel_llm.instrument(**captured.providers)
    kinds = {"pooling": pooling, "encoding": encoding, "async": asynchronous, "roles": roles}
    if kind == "offline":
        offline(model, *endpoint)
    else:
        kinds[kind](model)
    spans = [
        {
            "name": span.name,
            "id": span.context.span_id,
            "parent": span.parent.span_id if span.parent else None,
            "trace": span.context.trace_id,
            "kind": span.kind.name,
            "status": span.status.status_code.name,
            "attributes": dict(span.attributes or {}),
        }
        for span in captured.spans
    ]
    print(json.dumps({"spans": spans, "engine": RUNTIME.engine}), flush=True)


def offline(model: str, endpoint: str | None = None) -> None:
    """Prompts in lists, one with several answers, a chat, and one that is too long."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, otlp_traces_endpoint=endpoint, **COMMON)
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


def encoding(model: str) -> None:
    """Classes by both methods, one list with a text that is too long, and `AsyncLLM.encode`."""
    from vllm import LLM

    # Weights are made up, those of the classes as well, which the model does not have.
    labels: dict[str, Any] = {"load_format": "dummy", "hf_overrides": {"num_labels": 2}}
    llm = LLM(model, runner="pooling", convert="classify", **labels, **COMMON)
    llm.classify(["first", "second text"], use_tqdm=False)
    llm.encode("third", pooling_task="classify", use_tqdm=False)
    try:
        llm.classify(["fine", "word " * 5000], use_tqdm=False)
    except Exception as error:
        print(type(error).__name__, file=sys.stderr)
    llm.llm_engine.engine_core.shutdown()
    asyncio.run(_encoding(model))


async def _encoding(model: str) -> None:
    from vllm import PoolingParams

    engine = _engine(model, runner="pooling")
    await _read(engine.encode("first", PoolingParams(task="embed"), "whole"))
    await _read(engine.encode("word " * 5000, PoolingParams(task="embed"), "refused"))
    engine.shutdown()


def asynchronous(model: str) -> None:
    """`AsyncLLM` in a script: to the end, closed early, and refused."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def scenario() -> None:
        engine = _engine(model)
        kind = RequestOutputKind.DELTA
        # Many tokens: a busy script finds all of a short answer in one output.
        deltas = SamplingParams(max_tokens=200, ignore_eos=True, output_kind=kind)
        await _read(engine.generate("Tell me", deltas, "whole"))
        # It stands still, so that it cannot have ended before it is closed.
        still = {"hold_after": 3}
        held = SamplingParams(ignore_eos=True, output_kind=kind, extra_args=still)
        closed: Any = engine.generate("Tell me", held, "closed")
        async for _ in closed:
            break
        await closed.aclose()
        await _read(engine.generate("word " * 5000, deltas, "refused"))
        engine.shutdown()

    asyncio.run(scenario())


def roles(model: str) -> None:
    """One prompt: prefilled by one engine, which stores its cache, and decoded by another."""
    from vllm import SamplingParams
    from vllm.config import KVTransferConfig

    async def scenario(store: str) -> None:
        for role, tokens in (("kv_producer", 1), ("kv_consumer", 4)):
            transfer = KVTransferConfig(
                kv_connector="ExampleConnector",
                kv_role=role,
                kv_connector_extra_config={"shared_storage_path": store},
            )
            engine = _engine(model, kv_transfer_config=transfer)
            params = SamplingParams(max_tokens=tokens, ignore_eos=True)
            await _read(engine.generate("word " * 100, params, role))
            engine.shutdown()

    with tempfile.TemporaryDirectory() as store:
        asyncio.run(scenario(store))


def _engine(model: str, **options: Any) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(model, **options, **COMMON))


async def _read(outputs: AsyncGenerator[Any, None]) -> None:
    """Take every output; a refusal is told."""
    try:
        async for _ in outputs:
            pass
    except Exception as error:
        print(type(error).__name__, file=sys.stderr)


COMMON: dict[str, Any] = {
    "served_model_name": "tiny",
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_seqs": 8,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
