"""Build every server into the cache: `python -m tests.services build`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from tests.services import jaeger, otelcol, vllm

BUILDS: dict[str, Callable[[], Path]] = {
    f"jaeger {jaeger.VERSION}": jaeger.binary,
    f"otelcol {otelcol.VERSION}": otelcol.binary,
    f"vllm {vllm.VERSION}": vllm.python,
    "tiny model": vllm.model,
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
