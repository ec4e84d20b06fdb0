"""Switch otel_llm off by one signal and on by another: one process, compared to itself."""

from __future__ import annotations

import signal
from typing import Any


def plugin() -> None:
    """Set the handlers, in every process of vLLM; only the API server is ever sent a signal."""
    signal.signal(signal.SIGRTMIN + 1, lambda *_: _switch(on=False))
    signal.signal(signal.SIGRTMIN + 2, lambda *_: _switch(on=True))


def _switch(*, on: bool) -> None:
    from otel_llm.config import RUNTIME

    patches: Any = RUNTIME.patches["vllm"]
    patches.active = on
