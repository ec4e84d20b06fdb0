"""Build every server into the cache: `python -m tests.services build`."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

from tests.services import jaeger, llama_cpp, ollama, otelcol, prometheus, vllm

BUILDS: dict[str, Callable[[], Path]] = {
    f"jaeger {jaeger.VERSION}": jaeger.binary,
    f"otelcol {otelcol.VERSION}": otelcol.binary,
    f"prometheus {prometheus.VERSION}": prometheus.binary,
    f"llama.cpp {llama_cpp.BUILD}": llama_cpp.binary,
    "tiny models for llama.cpp": llama_cpp.model,
    f"ollama {ollama.VERSION}": ollama.binary,
    f"vllm {vllm.VERSION}": vllm.python,
    f"vllm {vllm.OLDEST}": functools.partial(vllm.python, vllm.OLDEST),
    f"tiny model for vllm {vllm.VERSION}": vllm.model,
    f"tiny model for vllm {vllm.OLDEST}": functools.partial(vllm.model, vllm.OLDEST),
}


def build() -> None:
    """Build what is missing, and print where each part is and how long it took."""
    for name, make in BUILDS.items():
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        path = make()
        print(f"{name}: {time.monotonic() - began:.1f} s, {path}", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    parser.add_argument("command", choices=["build"])
    parser.parse_args()
    build()


if __name__ == "__main__":
    main()
