"""The configuration of a vLLM engine, as far as it can be read without importing anything."""

from __future__ import annotations

import functools
import importlib.util
from enum import Enum
from pathlib import Path
from typing import Any

from otel_llm import semconv
from otel_llm.adapters.registry import ENGINES
from otel_llm.emit.values import Value, clean_value
from otel_llm.guard import guard

_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_FIELDS = (
    ("tensor_parallel_size", "parallel_config.tensor_parallel_size"),
    ("pipeline_parallel_size", "parallel_config.pipeline_parallel_size"),
    ("data_parallel_size", "parallel_config.data_parallel_size"),
    ("quantization", "model_config.quantization"),
    ("dtype", "model_config.dtype"),
    ("max_model_len", "model_config.max_model_len"),
    ("max_num_seqs", "scheduler_config.max_num_seqs"),
    ("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens"),
    ("attention_backend", "attention_config.backend"),
    ("kv_cache_dtype", "cache_config.cache_dtype"),
    ("block_size", "cache_config.block_size"),
    ("prefix_caching", "cache_config.enable_prefix_caching"),
    ("speculative_method", "speculative_config.method"),
)
_PHASE_SPAN = "vllm_prefill"
"""A span that a vLLM with phase spans of its own writes."""
_TRACING_FILES = ("tracing", "tracing.py", "v1/engine/output_processor.py")
LARGEST_FILE = 2_000_000


def configuration(vllm_config: Any) -> dict[str, Value]:
    """Resource attributes of an engine: name, version, a hash of its configuration, sizes."""
    found: dict[str, Value | None] = {
        "name": "vllm",
        "version": ENGINES["vllm"].installed_version(),
    }
    for name, path in _FIELDS:
        with guard("vllm.config"):
            found[name] = _plain(_read(vllm_config, path))
    with guard("vllm.config_hash"):
        if hasattr(vllm_config, "compute_hash"):
            found["config_hash"] = _plain(vllm_config.compute_hash())
    return {f"{semconv.ENGINE}.{name}": each for name, each in found.items() if each is not None}


def _read(config: Any, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def _plain(value: object) -> Value | None:
    """A configured value; an enum by its name, `torch.bfloat16` by the last part of its text."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | int | float):
        return None if value == "" else clean_value(value)
    return str(value).rpartition(".")[2][:64]


def model_of(engine: Any) -> str | None:
    """The name under which an engine serves its model."""
    config = _model_config(engine)
    names = getattr(config, "served_model_name", None)
    first = names[0] if isinstance(names, list | tuple) and names else names
    return str(first or getattr(config, "model", None) or "") or None


def only_model_of(engine: Any) -> str | None:
    """The one name under which an engine can be asked for; None if it has several."""
    names = getattr(_model_config(engine), "served_model_name", None)
    several = isinstance(names, list | tuple) and len(names) > 1
    return None if several else model_of(engine)


def _model_config(engine: Any) -> Any:
    return getattr(engine, "model_config", None) or _read(engine, "vllm_config.model_config")


def role_of(engine: Any) -> str | None:
    """The engine's part in disaggregated serving, `prefill` or `decode`; None if it does both."""
    role = _read(engine, "vllm_config.kv_transfer_config.kv_role")
    return _ROLES.get(role) if isinstance(role, str) else None


def traces_natively(engine: Any) -> bool:
    """Whether vLLM writes `llm_request` spans of its own."""
    config = getattr(engine, "observability_config", None)
    config = config or _read(engine, "vllm_config.observability_config")
    return getattr(config, "otlp_traces_endpoint", None) is not None


def writes_phase_spans(engine: Any) -> bool:
    """Whether *engine* traces natively, and with spans of phases, so that ours would be doubles."""
    return traces_natively(engine) and installed_makes_phase_spans()


@functools.cache
def installed_makes_phase_spans() -> bool:
    """`makes_phase_spans` of the vLLM that is installed; its source is read once."""
    return makes_phase_spans()


def makes_phase_spans(root: Path | None = None) -> bool:
    """Whether the installed vLLM writes spans of phases itself, so that ours would be doubles."""
    with guard("vllm.phase_spans"):
        root = root or _root()
        if root is not None:
            return any(_PHASE_SPAN in text for text in _tracing_sources(root))
    return False


def _root() -> Path | None:
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _tracing_sources(root: Path) -> list[str]:
    files: list[Path] = []
    for name in _TRACING_FILES:
        path = root / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
    small = (path for path in files if path.stat().st_size <= LARGEST_FILE)
    return [path.read_text("utf-8", "replace") for path in small]
