"""What somebody's plugin may do in vLLM's engine process: set up telemetry there, and use it."""

from __future__ import annotations

import multiprocessing


def plugin() -> None:
    """Trace a request in the engine's process, and only there."""
    if not multiprocessing.current_process().name.startswith("EngineCore"):
        return
    import otel_llm

    otel_llm.configure(service_name="engine-core", engines=[])
    with otel_llm.trace_request("chat", model="inside", provider="plugin") as request:
        request.usage(input_tokens=1)
    otel_llm.uninstrument()  # flushes; the engine goes on without
