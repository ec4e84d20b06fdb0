"""What the small engine claims about vLLM, compared with the real package."""

from __future__ import annotations

import inspect
import json
import subprocess
from dataclasses import fields
from typing import Any

import pytest

from otel_llm.adapters.vllm import describe
from tests.fakes import vllm as fake
from tests.fakes import vllm_offline as offline
from tests.fakes import vllm_state as state
from tests.services import vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

SCRIPT = """
import dataclasses, inspect, json
from fastapi import FastAPI
from vllm import config, exceptions, outputs
from vllm.config.kv_transfer import KVTransferConfig
from vllm.entrypoints.llm import LLM
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.stats import (
    IterationStats, PromptTokenStats, RequestSpecDecodeMetrics, RequestStateStats, SchedulerStats
)

def fields(kind):
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    known = (base.__dict__.get("__annotations__", {}) for base in kind.__mro__)
    return sorted({name for each in known for name in each})

def parameters(owner, name):
    return list(inspect.signature(getattr(owner, name)).parameters)

def made(owner, name):
    return f"self.{name} = " in inspect.getsource(owner.__init__)

configs = {
    "parallel_config": config.ParallelConfig,
    "model_config": config.ModelConfig,
    "scheduler_config": config.SchedulerConfig,
    "attention_config": config.AttentionConfig,
    "cache_config": config.CacheConfig,
    "speculative_config": config.SpeculativeConfig,
    "kv_transfer_config": KVTransferConfig,
    "observability_config": config.ObservabilityConfig,
}
kinds = (
    RequestStateStats, CompletionOutput, SamplingParams, PoolingParams, LoRARequest,
    EngineCoreEvent, EngineCoreRequest, SchedulerStats, PromptTokenStats, ParentRequest,
    RequestSpecDecodeMetrics,
)
print(json.dumps({
    **{each.__name__: fields(each) for each in kinds},
    "RequestOutput": sorted(vars(RequestOutput("r", None, [1], None, [], False))),
    "PoolingRequestOutput": sorted(vars(PoolingRequestOutput("r", None, [1], 0, True))),
    "RequestState": [name for name in ("stats",) if made(RequestState, name)],
    "IterationStats": sorted(vars(IterationStats())),
    "RequestOutputKind": {each.name: each.value for each in RequestOutputKind},
    "EngineCoreEventType": {each.name: each.value for each in EngineCoreEventType},
    "parameters": {
        f"{owner.__name__}.{name}": parameters(owner, name)
        for owner, name in (
            (AsyncLLM, "generate"), (AsyncLLM, "encode"),
            (OutputProcessor, "add_request"), (IterationStats, "update_from_events"),
            (StatLoggerManager, "record"), (LLMEngine, "step"),
            (AsyncLLM, "__init__"), (LLMEngine, "__init__"),
        )
    },
    "generators": list(map(inspect.isasyncgenfunction, (AsyncLLM.generate, AsyncLLM.encode))),
    "owners": {
        name: [base.__name__ for base in LLM.__mro__ if name in vars(base)]
        for name in ("__init__", "generate", "chat", "encode", "embed", "classify", "score")
    },
    "attributes": {
        owner.__name__: [
            name
            for name in (
                "vllm_config", "model_config", "observability_config", "output_processor",
                "logger_manager", "request_states", "llm_engine",
            )
            if made(owner, name) or f"self.{name}: " in inspect.getsource(owner.__init__)
        ]
        for owner in (AsyncLLM, LLMEngine, OutputProcessor, LLM)
    },
    "by_default": 'kwargs["disable_log_stats"] = True' in inspect.getsource(LLM.__init__),
    "vllm_config": fields(config.VllmConfig) + dir(config.VllmConfig),
    "configs": {name: fields(kind) for name, kind in configs.items()},
    "bases": [each.__name__ for each in exceptions.VLLMValidationError.__mro__],
    "error": fields(outputs.RequestError),
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


KINDS = (
    fake.CompletionOutput,
    fake.LoRARequest,
    fake.PoolingParams,
    fake.PoolingRequestOutput,
    fake.RequestOutput,
    fake.SamplingParams,
    state.EngineCoreEvent,
    state.EngineCoreRequest,
    state.ParentRequest,
    state.PromptTokenStats,
    state.RequestSpecDecodeMetrics,
    state.RequestState,
    state.RequestStateStats,
    state.SchedulerStats,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_attributes(real: dict[str, Any], kind: Any) -> None:
    """Every attribute of the small class exists on the real one."""
    assert {each.name for each in fields(kind)} <= set(real[kind.__name__])


def test_attributes_that_the_small_ones_lack(real: dict[str, Any]) -> None:
    """A pooling output may be an error; a message to the engine names the parent of its span."""
    assert "error" in real["PoolingRequestOutput"]
    assert "code" in real["error"]
    assert "trace_headers" in real["EngineCoreRequest"]


def test_attributes_of_a_step(real: dict[str, Any]) -> None:
    """Those that the small one has, the real one has too."""
    assert set(vars(state.IterationStats())) <= set(real["IterationStats"])


@pytest.mark.parametrize(("name", "leading"), [("generate", 4), ("encode", 6)])
def test_generators(real: dict[str, Any], name: str, leading: int) -> None:
    """The same leading parameters under the same names, and an async generator function."""
    small = list(inspect.signature(getattr(fake.AsyncLLM, name)).parameters)
    found = real["parameters"][f"AsyncLLM.{name}"]
    assert small[:leading] == found[:leading]
    assert set(small) <= set(found)
    assert real["generators"] == [True, True]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (state.OutputProcessor, "add_request"),
        (state.IterationStats, "update_from_events"),
        (state.StatLoggerManager, "record"),
        (offline.LLMEngine, "step"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_private_functions(real: dict[str, Any], owner: Any, name: str) -> None:
    """The very parameters: the adapter finds arguments by their places and names."""
    small = list(inspect.signature(getattr(owner, name)).parameters)
    assert small == real["parameters"][f"{owner.__name__}.{name}"]


@pytest.mark.parametrize("owner", ["AsyncLLM", "LLMEngine"])
def test_engines_are_made_with_a_configuration(real: dict[str, Any], owner: str) -> None:
    """As the first argument, under this name."""
    assert real["parameters"][f"{owner}.__init__"][:2] == ["self", "vllm_config"]


def test_attributes_of_engines(real: dict[str, Any]) -> None:
    """What the adapter reads of objects is set where they are made."""
    config = {"vllm_config", "model_config", "observability_config"}
    both = config | {"output_processor", "logger_manager"}
    found = {name: set(each) for name, each in real["attributes"].items()}
    assert found["AsyncLLM"] == found["LLMEngine"] == both
    assert found["OutputProcessor"] == {"request_states"}
    assert "llm_engine" in found["LLM"]


def test_where_offline_methods_are(real: dict[str, Any]) -> None:
    """Each in one class; those for pooling in a base, as in the small one."""
    small = {
        name: [base.__name__ for base in offline.LLM.__mro__ if name in vars(base)]
        for name in ("generate", "chat", "encode", "embed", "classify", "score")
    }
    assert small == {name: real["owners"][name] for name in small}
    assert real["owners"]["__init__"][0] == "LLM"


def test_offline_statistics(real: dict[str, Any]) -> None:
    """They are off unless something is passed."""
    assert real["by_default"]


def test_configuration(real: dict[str, Any]) -> None:
    """Every part and every field that is read exists, and so does what the small one has."""
    wanted = {path for _, path in describe._FIELDS}
    wanted |= {"kv_transfer_config.kv_role", "observability_config.otlp_traces_endpoint"}
    wanted |= {"model_config.served_model_name", "model_config.model"}
    known = {f"{part}.{name}" for part, names in real["configs"].items() for name in names}
    assert wanted <= known
    assert set(vars(state.configuration())) <= set(real["vllm_config"])


def test_events(real: dict[str, Any]) -> None:
    """The same names for the same values."""
    small = {each.name: each.value for each in state.EngineCoreEventType}
    assert small == real["EngineCoreEventType"]


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
