"""What the small engine claims about vLLM, compared with the real package."""

from __future__ import annotations

import inspect
import json
import subprocess
from dataclasses import fields
from typing import Any

import pytest

from tests.fakes import vllm as fake
from tests.services import vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

SCRIPT = """
import dataclasses, inspect, json
from fastapi import FastAPI
from vllm import exceptions
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats

output = RequestOutput("r", None, [1], None, [], False)
print(json.dumps({
    "RequestStateStats": [each.name for each in dataclasses.fields(RequestStateStats)],
    "CompletionOutput": [each.name for each in dataclasses.fields(CompletionOutput)],
    "RequestOutput": sorted(vars(output)),
    "SamplingParams": sorted(SamplingParams.__annotations__),
    "LoRARequest": sorted(LoRARequest.__annotations__),
    "RequestOutputKind": {each.name: each.value for each in RequestOutputKind},
    "generate": list(inspect.signature(AsyncLLM.generate).parameters),
    "is_async_generator": inspect.isasyncgenfunction(AsyncLLM.generate),
    "bases": [each.__name__ for each in exceptions.VLLMValidationError.__mro__],
    "refusals": sorted(set(dir(exceptions)) & {"VLLMClientError", "GracefulHTTPError"}),
    "stack": "build_middleware_stack" in vars(FastAPI),
}))
"""


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """Names in the real package; nothing of it is started."""
    done = subprocess.run(
        [vllm.python(), "-P", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "kind",
    [
        fake.RequestStateStats,
        fake.CompletionOutput,
        fake.RequestOutput,
        fake.SamplingParams,
        fake.LoRARequest,
    ],
    ids=lambda kind: kind.__name__,
)
def test_attributes(real: dict[str, Any], kind: Any) -> None:
    """Every attribute of the small class exists on the real one."""
    assert {each.name for each in fields(kind)} <= set(real[kind.__name__])


def test_generate(real: dict[str, Any]) -> None:
    """The same leading parameters under the same names, and an async generator function."""
    small = list(inspect.signature(fake.AsyncLLM.generate).parameters)
    assert small[:4] == real["generate"][:4]
    assert set(small) <= set(real["generate"])
    assert real["is_async_generator"]


def test_output_kinds(real: dict[str, Any]) -> None:
    """The same names for the same values."""
    assert {each.name: each.value for each in fake.RequestOutputKind} == real["RequestOutputKind"]


def test_refusals(real: dict[str, Any]) -> None:
    """The exceptions that are refusals have kept their names and their order."""
    assert real["refusals"] == ["GracefulHTTPError", "VLLMClientError"]
    assert real["bases"][:3] == ["VLLMValidationError", "VLLMClientError", "VLLMError"]


def test_the_middleware_has_a_place(real: dict[str, Any]) -> None:
    """FastAPI in that environment builds its stack in the function that is replaced."""
    assert real["stack"]
