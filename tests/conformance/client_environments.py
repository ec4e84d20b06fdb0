"""Environments with other versions of clients, and with what else traces their calls."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.services.environment import python

_OURS = ("opentelemetry-sdk==1.45.2", "wrapt==2.5.2")
_OPENAI = ("openai==3.57.0", *_OURS)
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "openai-1.40": ("openai==1.40.0", "httpx==0.27.2", *_OURS),
    "openai-1.109": ("openai==1.109.1", *_OURS),
    "openai-2.54": ("openai==2.54.0", *_OURS),
    "ollama-0.4.0": ("ollama==0.4.0", *_OURS),
    "http": (
        *_OPENAI,
        "opentelemetry-instrumentation-httpx==0.66b2",
        "opentelemetry-instrumentation-requests==0.66b2",
        "requests",
        "httpx",
    ),
    "langchain": (
        *_OPENAI,
        "langchain-openai",
        "openinference-instrumentation-langchain",
        "opentelemetry-instrumentation-langchain",
    ),
    "litellm": ("litellm", *_OURS),
}
"""Requirements by name."""


def interpreter(name: str) -> Path:
    """The interpreter of an environment; built when it is missing.

    Raises:
        CommandError: It could not be built.
    """
    packages = ENVIRONMENTS[name]
    version = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:8]
    return python(f"client-{name}", version, packages)
