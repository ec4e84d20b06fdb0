"""Simulated servers: bare ASGI applications that speak vLLM, TGI and Ollama.

    app = VllmApp(Engine(EngineConfig.of(HARDWARE["L4"], MODELS["Llama-3.1-8B"])))

They run under any ASGI server, or in process through `otel_llm.simulator.virtual`. What really
happened to each request is in `app.truths`.
"""

from __future__ import annotations

from otel_llm.simulator.serving.app import ServingApp, ServingConfig
from otel_llm.simulator.serving.ollama import OllamaApp
from otel_llm.simulator.serving.tgi import TgiApp
from otel_llm.simulator.serving.truth import ServingTruth
from otel_llm.simulator.serving.vllm import VllmApp

DIALECTS: dict[str, type[ServingApp]] = {"vllm": VllmApp, "tgi": TgiApp, "ollama": OllamaApp}
"""The applications by the name of their dialect."""

__all__ = [
    "DIALECTS",
    "OllamaApp",
    "ServingApp",
    "ServingConfig",
    "ServingTruth",
    "TgiApp",
    "VllmApp",
]
