"""Switch otel_llm off by SIGUSR1 and on by SIGUSR2: one process, compared to itself."""

from __future__ import annotations

import signal
from typing import Any


def plugin() -> None:
    """Set the handlers, in every process of vLLM; only the API server is ever sent a signal."""
    signal.signal(signal.SIGUSR1, lambda *_: _switch(on=False))
    signal.signal(signal.SIGUSR2, lambda *_: _switch(on=True))


def _switch(*, on: bool) -> None:
    from otel_llm.config import RUNTIME

    patches: Any = RUNTIME.patches["vllm"]
    patches.active = on
