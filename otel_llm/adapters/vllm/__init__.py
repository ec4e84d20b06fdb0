"""vLLM: its servers, its asynchronous engine and its offline `LLM`, with the engine's own stamps.

- `server`: an application that holds a vLLM engine gets our middleware as its outermost one.
- `engine`: `AsyncLLM.generate` and `encode`, below an open request or as requests of their own.
- `offline`: `LLM.generate`, `chat`, `encode` and what else takes a list of prompts.
- `state`: the live statistics of each request, preemptions, and the state of the replica, from
  three functions that vLLM does not document; without them their numbers are absent.
- `calls`: what one call of the engine leaves behind. `describe`: the engine's configuration.

Nothing of vLLM is imported here, and each function is replaced when its module is imported.
"""

from __future__ import annotations

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.adapters.vllm import engine, offline, server, state

NAME = "vllm"


class VllmAdapter:
    """Patches vLLM and the web framework of its server."""

    def install(self, host: Host) -> Patches:
        """Patch vLLM and FastAPI as they are imported."""
        patches = Patches(NAME)
        found = patches.when_imported
        found("vllm.v1.engine.async_llm", lambda m: engine.patch(m.AsyncLLM, patches, host))
        found("fastapi.applications", lambda m: server.patch(m.FastAPI, patches, host))
        found("vllm.entrypoints.llm", lambda m: offline.patch(m.LLM, patches, host))
        found(
            "vllm.v1.engine.llm_engine", lambda m: offline.patch_engine(m.LLMEngine, patches, host)
        )
        found(
            "vllm.v1.engine.output_processor",
            lambda m: state.patch_requests(m.OutputProcessor, patches),
        )
        found("vllm.v1.metrics.stats", lambda m: state.patch_events(m.IterationStats, patches))
        found("vllm.v1.metrics.loggers", lambda m: state.patch_loggers(m, patches))
        return patches


ADAPTER = VllmAdapter()
