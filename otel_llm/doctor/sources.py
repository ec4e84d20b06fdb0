"""What an installed vLLM offers to its adapter, read from its source files.

Nothing of vLLM is imported: that takes many seconds, needs its hardware, and would load plugins.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from otel_llm.adapters.vllm.describe import makes_phase_spans
from otel_llm.doctor.finding import Finding, error, info, ok, warning

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

RUST = "VLLM_USE_RUST_FRONTEND"
_PROCESSOR = "v1/engine/output_processor.py"
_OFFLINE = ("entrypoints/llm.py", "entrypoints/*/offline.py")


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that the adapter replaces: where it is looked for, and what is lost without.

    `inherited`: the function may stand in any class of the files, as a base of the one named.
    """

    name: str
    files: tuple[str, ...]
    loses: str
    inherited: bool = False

    def found(self, root: Path) -> bool:
        """Whether the function is defined where the adapter will find it."""
        owner, function = self.name.split(".")
        return any(
            each.name == function
            for tree in _trees(root, self.files)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and (self.inherited or node.name == owner)
            for each in node.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        )


GENERATE = Hook(
    "AsyncLLM.generate", ("v1/engine/async_llm.py",), "requests of the server are not seen"
)
HOOKS = (
    GENERATE,
    Hook("AsyncLLM.encode", ("v1/engine/async_llm.py",), "embeddings and the like have no phases"),
    Hook("OutputProcessor.add_request", (_PROCESSOR,), "requests cut off early have no phases"),
    Hook(
        "IterationStats.update_from_events",
        ("v1/metrics/stats.py",),
        "time lost by preemption is not known",
    ),
    Hook(
        "StatLoggerManager.record",
        ("v1/metrics/loggers.py",),
        "the state of the replica (running, waiting, KV cache) is not known",
    ),
    Hook("LLM.generate", _OFFLINE, "offline generation is not seen", inherited=True),
    Hook("LLM.chat", _OFFLINE, "offline chat is not seen", inherited=True),
    Hook(
        "LLMEngine.step",
        ("v1/engine/llm_engine.py",),
        "offline requests seem to end when the whole call does",
    ),
)


@dataclass(frozen=True, slots=True)
class VllmSource:
    """What the source files of one vLLM say.

    `native_asserts`: its native tracing fails if statistics are off. `rust`: it knows of the Rust
    front end. `v0`: it still has the engine before V1. `workers_trace`: its engine and worker
    processes start a tracer when `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set.
    """

    hooks: frozenset[str] = frozenset()
    stamps: bool = False
    phase_spans: bool = False
    native_asserts: bool = False
    rust: bool = False
    v0: bool = False
    workers_trace: bool = False

    @classmethod
    def read(cls, root: Path) -> VllmSource:
        """Read the package at *root*; files that are missing or broken offer nothing."""
        return cls(
            hooks=frozenset(hook.name for hook in HOOKS if hook.found(root)),
            stamps=_hands_out_stamps(root),
            phase_spans=makes_phase_spans(root),
            native_asserts=_asserts_statistics(root),
            rust=_mentions(root, ("envs.py",), rf"\b{RUST}\b"),
            v0=_mentions(root, ("engine/async_llm_engine.py",), r"(?m)^class AsyncLLMEngine\b"),
            workers_trace=_mentions(
                root,
                ("tracing/*.py",),
                r"environ(\.get)?\W+OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            ),
        )


def _texts(root: Path, files: tuple[str, ...]) -> Iterator[str]:
    for pattern in files:
        for path in sorted(root.glob(pattern)):
            try:
                yield path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue


def _trees(root: Path, files: tuple[str, ...]) -> Iterator[ast.Module]:
    for text in _texts(root, files):
        try:
            yield ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue


def _mentions(root: Path, files: tuple[str, ...], pattern: str) -> bool:
    return any(re.search(pattern, text) for text in _texts(root, files))


def _hands_out_stamps(root: Path) -> bool:
    """Whether outputs carry live statistics; older ones have the attribute and leave it empty."""
    return any(
        isinstance(node, ast.Call) and any(each.arg == "metrics" for each in node.keywords)
        for tree in _trees(root, (_PROCESSOR,))
        for node in ast.walk(tree)
    )


def _asserts_statistics(root: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "do_tracing"
        and any(isinstance(each, ast.Assert) for each in ast.walk(node))
        for tree in _trees(root, (_PROCESSOR,))
        for node in ast.walk(tree)
    )


def check(environment: Environment) -> Iterator[Finding]:
    """Which hooks will be used, and which phases will be missing."""
    source = environment.vllm
    if source is None:
        return
    if GENERATE.name not in source.hooks:
        yield error(
            "vllm.unsupported",
            "this vLLM has no AsyncLLM.generate",
            "Its requests have no phases; a server's spans show E2E alone.",
            "Use vLLM 0.11.1 or newer.",
        )
        return
    if "build_middleware_stack" not in environment.fastapi:
        yield warning(
            "vllm.middleware",
            "FastAPI's build_middleware_stack was not found",
            "Arrival and delivery are not seen; requests get spans of the engine's side alone.",
            "Install vLLM's server requirements, or a FastAPI that otel_llm knows.",
        )
    yield from _hooks(source)
    yield from _phases(source)
    yield from _front_ends(environment, source)


def _hooks(source: VllmSource) -> Iterator[Finding]:
    found = [hook.name for hook in HOOKS if hook.name in source.hooks]
    yield ok("vllm.hooks", f"hooks: {', '.join(found)}")
    for hook in HOOKS:
        if hook.name not in source.hooks:
            yield info(
                "vllm.hook-missing",
                f"{hook.name} is not there",
                f"Without it {hook.loses}.",
                "Use a newer vLLM if you need it.",
            )


def _phases(source: VllmSource) -> Iterator[Finding]:
    if source.stamps:
        yield ok("vllm.phases", "phases: preprocess, queue, prefill, first_token, decode, delivery")
    else:
        yield warning(
            "vllm.no-stamps",
            "outputs of this vLLM carry no times (older than 0.11.1)",
            "Queue and prefill are missing and are part of `unaccounted`; the other phases are "
            "there, as observed from outside the engine.",
            "Use vLLM 0.11.1 or newer.",
        )
    if source.phase_spans:
        yield info(
            "vllm.native-phases",
            "this vLLM can write spans of phases itself",
            "With --otlp-traces-endpoint our phase spans step back; the summary stays.",
        )


def _front_ends(environment: Environment, source: VllmSource) -> Iterator[Finding]:
    wanted = environment.variables.get(RUST, "").strip()
    if wanted not in {"", "0"} and source.rust:
        yield error(
            "vllm.rust-front-end",
            f"{RUST} is set: requests do not pass through Python",
            "Nothing of the server is seen, and vLLM refuses --otlp-traces-endpoint and "
            "--middleware with it.",
            f"Unset {RUST}, or trace the clients.",
        )
    if source.v0 and environment.variables.get("VLLM_USE_V1", "").strip() == "0":
        yield error(
            "vllm.v0-engine",
            "VLLM_USE_V1=0 selects the old engine",
            "The adapter knows the V1 engine alone; requests have no phases.",
            "Unset VLLM_USE_V1.",
        )
    if source.workers_trace and environment.variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        yield info(
            "vllm.workers-trace",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set",
            "vLLM's engine and worker processes each start a tracer of their own when they see "
            "it, over gRPC unless OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is http/protobuf.",
            "Set OTEL_EXPORTER_OTLP_ENDPOINT instead to keep their start-up spans out.",
        )
