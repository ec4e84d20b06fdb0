"""One vLLM server, bare or traced in one of several ways, as the last signal says.

Two processes of the same program differ by more than what is to be found; so one process is
compared with itself.
"""

from __future__ import annotations

import functools
import signal
from typing import Any

MODES = ("bare", "ours", "byhand", "native")
"""In the order of their signals, from SIGRTMIN + 1 on."""
_engines: list[Any] = []


def plugin() -> None:
    """Set the handlers, in every process of vLLM; only the API server is ever sent a signal."""
    from vllm.v1.engine.async_llm import AsyncLLM

    original = AsyncLLM.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        config = self.vllm_config.observability_config
        _engines.append((self, config, config.otlp_traces_endpoint))

    AsyncLLM.__init__ = init
    for number, mode in enumerate(MODES, 1):
        signal.signal(signal.SIGRTMIN + number, lambda *_, mode=mode: _switch(mode))


def _switch(mode: str) -> None:
    import byhand

    from otel_llm.config import RUNTIME

    patches: Any = RUNTIME.patches["vllm"]
    patches.active = mode == "ours"
    byhand.Middleware.active = mode == "byhand"
    for engine, config, endpoint in _engines:
        engine.output_processor.tracing_enabled = mode == "native"
        config.otlp_traces_endpoint = endpoint if mode == "native" else None
