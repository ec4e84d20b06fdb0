"""Uploads: what a request is told of its model, its recording and its language."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.adapters.builders import FINAL_ONLY, lengths
from tests.emit.builders import attached, opened, written
from tests.fakes import vllm, vllm_state
from tests.fakes.vllm import AsyncLLM, SamplingParams

HEARD = SamplingParams(output_kind=FINAL_ONLY)


def detecting() -> SamplingParams:
    """As vLLM asks for a language: one token, of some."""
    params = SamplingParams(output_kind=FINAL_ONLY, max_tokens=1)
    params.allowed_token_ids = [1, 2]  # type: ignore[attr-defined]
    return params


async def heard(
    captured: CapturedTelemetry,
    engine: AsyncLLM,
    *calls: tuple[str, SamplingParams],
    operation: str = "transcription",
    model: str | None = None,
    **more: Any,
) -> None:
    """A request that makes these calls of the engine, one after the other."""
    live = opened(captured, operation=operation, model=model)
    live.recorder.streaming = False
    with attached(live.context):
        for name, params in calls or (("r", HEARD),):
            _ = [each async for each in engine.generate("hi", params, name, **more)]
    live.finish()


@pytest.mark.parametrize("operation", ["transcription", "translation"])
async def test_the_engines_model(
    captured: CapturedTelemetry, engine: AsyncLLM, operation: str
) -> None:
    """Nobody reads an upload first; its span is named when the engine is called."""
    await heard(captured, engine, operation=operation)
    found = written(captured, f"{operation} tiny")
    assert (found[semconv.REQUEST_MODEL], found[semconv.INPUT_AUDIO]) == ("tiny", 1)


async def test_metrics_know_it_too(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Their attribute is the same."""
    await heard(captured, engine)
    (point,) = captured.points(semconv.SERVER_DURATION)
    assert point.attributes[semconv.REQUEST_MODEL] == "tiny"


async def test_an_adapter(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """It was asked for by its own name."""
    await heard(captured, engine, lora_request=vllm.LoRARequest("legal"))
    assert written(captured, "transcription legal")[semconv.REQUEST_MODEL] == "legal"


async def test_several_names(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """Which of them was asked for is not known."""
    engine.model_config = SimpleNamespace(served_model_name=["a", "b"], model="org/tiny")
    await heard(captured, engine)
    assert semconv.REQUEST_MODEL not in written(captured, "transcription")


async def test_a_model_that_was_announced(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """It stays, and other requests have no recording."""
    await heard(captured, engine, operation="chat", model="alias")
    assert semconv.INPUT_AUDIO not in written(captured, "chat alias")


async def test_the_question_for_the_language(captured: CapturedTelemetry, engine: AsyncLLM) -> None:
    """It is preparation: the queue is that of the call that answers, and so are the tokens."""
    await heard(captured, engine, ("t-1-lang_detect", detecting()), ("t-1", HEARD))
    found = written(captured, "transcription tiny")
    assert lengths(found)["preprocess"] == 284 + 4
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (7, 4)
    assert found[semconv.FINISH_REASONS] == ("stop",)


@pytest.mark.parametrize(
    ("name", "params"), [("lang_detect-1", detecting()), ("x-lang_detect", HEARD)]
)
async def test_what_looks_like_one(
    captured: CapturedTelemetry, engine: AsyncLLM, name: str, params: SamplingParams
) -> None:
    """Ids come from clients: neither the name nor the parameters alone are enough."""
    await heard(captured, engine, (name, params))
    assert lengths(written(captured, "transcription tiny"))["preprocess"] == 4


def test_one_name_or_none() -> None:
    """A list of one is one, no list is the path."""
    from otel_llm.adapters.vllm import describe

    def engine(names: Any) -> Any:
        model = SimpleNamespace(served_model_name=names, model="org/tiny")
        return SimpleNamespace(vllm_config=vllm_state.configuration(model_config=model))

    found = [describe.only_model_of(engine(each)) for each in (["a"], "a", None, ["a", "b"])]
    assert found == ["a", "a", "org/tiny", None]
