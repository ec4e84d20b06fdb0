"""Whether an instrumentation is right: exits, first tokens, token counts, the caller's span.

The server's times are known, the consumer keeps its own clock, and spans are looked at the moment
the application has left the stream. Works for any row of `peers`, and in a test for ours.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tests.benchmarks.clients.exits import SHORT, exits, left
from tests.benchmarks.clients.replies import INPUT_TOKENS
from tests.benchmarks.clients.subject import Subject, logged

TIMED = "fake-chunks20-first80-gap5"
LATE = "fake-chunks20-headers80-gap5"
OUTPUT_TOKENS = 20


@dataclass(frozen=True)
class Timed:
    """Milliseconds as the consumer saw them, and as they were reported; `tokens` are in the spans.

    `reported` holds every first-token time that was found in spans, events and metrics.
    """

    first_ms: float
    total_ms: float
    reported: list[float]
    span_ms: list[float]
    tokens: bool


def timed(subject: Subject, model: str) -> Timed:
    """Read a whole stream by the consumer's own clock; *model* is `TIMED` or `LATE`."""
    before = _metrics(subject)
    with subject.calling():
        began = time.perf_counter()
        times = []
        for _ in subject.open(model):
            times.append(time.perf_counter() - began)
        total = time.perf_counter() - began
    spans = subject.spans()
    added = {
        key: (c - before.get(key, (0, 0))[0], t - before.get(key, (0, 0))[1])
        for key, (c, t) in _metrics(subject).items()
    }
    reported = [each for span in spans for each in _first_of(span)]
    reported += [t / c * 1000 for key, (c, t) in added.items() if c and "first" in key]
    return Timed(
        times[0] * 1000,
        total * 1000,
        [round(each, 2) for each in reported],
        [(span.end_time - span.start_time) / 1e6 for span in spans],
        _has_tokens(spans),
    )


def _metrics(subject: Subject) -> dict[str, tuple[int, float]]:
    """Count and sum of every histogram."""
    data = subject.pipeline.reader.get_metrics_data()
    found: dict[str, tuple[int, float]] = {}
    for resource in data.resource_metrics if data else ():
        for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
            for point in metric.data.data_points:
                if hasattr(point, "bucket_counts"):
                    count, total = found.get(metric.name, (0, 0.0))
                    found[metric.name] = count + point.count, total + point.sum
    return found


_FIRST = re.compile(r"first|ttft|completion_start", re.IGNORECASE)


def _first_of(span: Any) -> Iterator[float]:
    """Every time to the first token on a span, milliseconds."""
    for key, value in (span.attributes or {}).items():
        if key.endswith(".ttft_us"):
            yield value / 1000
        elif _FIRST.search(key) and isinstance(value, float):
            yield value * 1000
        elif "completion_start" in key:
            at = datetime.fromisoformat(value.strip('"'))
            yield at.timestamp() * 1000 - span.start_time / 1e6
    for event in span.events:
        if re.search("token|chunk", event.name, re.IGNORECASE):
            yield (event.timestamp - span.start_time) / 1e6
            break


def _has_tokens(spans: Iterable[Any]) -> bool:
    """Whether the counts that the server sent are in the attributes, in whatever form."""
    values = [
        str(value)
        for span in spans
        for key, value in (span.attributes or {}).items()
        if ("token" in key or "usage" in key) and "max_tokens" not in key
    ]
    return all(
        any(re.search(rf"\b{n}\b", value) for value in values)
        for n in (INPUT_TOKENS, OUTPUT_TOKENS)
    )


def guessed_tokens(subject: Subject) -> bool:
    """Whether tokens are reported that the server did not count; Ollama always counts."""
    with subject.calling():
        subject.read(subject.open(SHORT, usage=False))
    return subject.library == "openai" and any(
        isinstance(value, int) and value > 0
        for span in subject.spans()
        for key, value in (span.attributes or {}).items()
        if re.search("(input|output|prompt|completion)_tokens$", key)
    )


def traceparent_sent(subject: Subject) -> bool:
    """Whether the request carried the call's own span as its parent."""
    with subject.calling():
        subject.read(subject.open(SHORT))
    sent = subject.server.last_headers.get("traceparent", "")
    return any(f"{span.context.span_id:016x}" in sent for span in subject.spans())


def keeps_type(subject: Subject) -> bool:
    """Whether the stream is still what the client returns: `openai.Stream`, or a generator."""
    with subject.calling():
        stream = subject.open(SHORT)
        if subject.library == "ollama":
            same = isinstance(stream, Iterator)
        else:
            import openai

            same = isinstance(stream, openai.Stream)
        subject.read(stream)
    return same


def context_kept(subject: Subject) -> bool:
    """Whether interleaved streams and one in another thread leave the caller's span alone."""
    with logged() as records, subject.calling():
        one, two, far = (subject.open(SHORT) for _ in range(3))
        for _ in zip(one, two, strict=False):
            subject.look()
        subject.read(two)
        thread = threading.Thread(target=lambda: [None for _ in far])
        thread.start()
        thread.join()
    return subject.unchanged and subject.below_caller() and not records


def everything(subject: Subject, spans: int = 1) -> dict[str, Any]:
    """All checks of one subject, as JSON can hold them."""
    subject.read(subject.open(SHORT))
    return {
        "exits": {
            name: asdict(left(subject, name, spans=spans)) for name in exits(subject.library)
        },
        "timed": asdict(timed(subject, TIMED)),
        "late": asdict(timed(subject, LATE)),
        "guessed tokens": guessed_tokens(subject),
        "traceparent sent": traceparent_sent(subject),
        "type kept": keeps_type(subject),
        "context kept": context_kept(subject),
    }
