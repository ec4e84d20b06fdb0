"""Scripts run as processes of their own, and what a receiver got from each of their children."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fakes.otlp import Receiver

REPO = Path(__file__).parents[2]


def run(script: str, receiver: Receiver | str, setup: str = "", **environ: str) -> str:
    """Run *script* after *setup*, both with the receiver's `url`; gives what was printed.

    It may take 20 seconds.
    """
    url = receiver if isinstance(receiver, str) else receiver.url
    head = f"import multiprocessing, os, sys, time\nimport otel_llm\nurl = {url!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + setup + textwrap.dedent(script)],
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def spans_by_pid(receiver: Receiver) -> Counter[int]:
    """How many spans of requests arrived from each process, by their attribute `pid`."""
    return Counter(
        each.value.int_value
        for span in receiver.spans
        for each in span.attributes
        if each.key == "pid"
    )


def points(receiver: Receiver, metric: str) -> list[tuple[str, Any]]:
    """Instance id and last data point of *metric* for each process that sent it."""
    found = {}
    for request in receiver._metrics:
        for resource in request.resource_metrics:
            attributes = {
                each.key: each.value.string_value for each in resource.resource.attributes
            }
            for scope in resource.scope_metrics:
                for each in scope.metrics:
                    if each.name == metric:
                        data = each.sum if each.HasField("sum") else each.histogram
                        found[attributes["service.instance.id"]] = data.data_points[-1]
    return list(found.items())
