"""A process that exits while a request is open, and what it still exports."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import textwrap
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

REPO = Path(__file__).parents[2]


def provider() -> TracerProvider:
    """A provider with a batch processor, whose spans are printed after its own exit handler."""
    memory = InMemorySpanExporter()

    @atexit.register
    def show() -> None:
        found = [(each.name, each.attributes or {}) for each in memory.get_finished_spans()]
        print(json.dumps([[name, seen["otel_llm.outcome"]] for name, seen in found]))

    made = TracerProvider()
    made.add_span_processor(BatchSpanProcessor(memory))
    return made


def spans_of_exit(script: str) -> list[list[str]]:
    """Name and outcome of the spans that a process exports which runs *script* and exits."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=REPO,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found
