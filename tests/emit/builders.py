"""Short ways to a request span, open and ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opentelemetry import context as context_api
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from otel_llm.emit.live import LiveRequest
from otel_llm.emit.request import RequestInfo
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Mark, Side

INFO = RequestInfo(operation="chat", provider="demo", model="tiny")
NAME = "chat tiny"


def opened(captured: CapturedTelemetry, side: Side = Side.SERVER, **info: Any) -> LiveRequest:
    """A streamed request that has just arrived."""
    live = captured.telemetry.start(replace(INFO, **info), side)
    live.recorder.streaming = True
    return live


def complete(live: LiveRequest) -> LiveRequest:
    """The request ends well."""
    live.recorder.ending(end_record=True)
    live.finish()
    return live


def generated(live: LiveRequest, clock: ManualClock, *, tokens: int = 5) -> LiveRequest:
    """Queue 10 ms, prefill 20 ms, first delivery 5 ms, decode 35 ms, delivery 1 ms."""
    for mark, seconds in (
        (Mark.QUEUED, 0.0),
        (Mark.SCHEDULED, 0.010),
        (Mark.FIRST_TOKEN, 0.020),
        (Mark.FIRST_DELIVERED, 0.005),
        (Mark.LAST_TOKEN, 0.035),
    ):
        clock.advance(seconds)
        live.recorder.mark(mark)
    live.recorder.usage(input=7, output=tokens)
    clock.advance(0.001)
    return live


def written(captured: CapturedTelemetry, name: str = NAME) -> Mapping[str, Any]:
    """The attributes of the one span of that name."""
    return captured.span(name).attributes or {}


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make *context* current for a while."""
    token = context_api.attach(context)
    try:
        yield
    finally:
        context_api.detach(token)


class Spy(Sampler):
    """A sampler that notes what it sees, and decides the same for every span."""

    def __init__(self, decision: Decision = Decision.RECORD_AND_SAMPLE) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._decision = decision

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
    ) -> SamplingResult:
        self.seen.append((name, dict(attributes or {})))
        return SamplingResult(self._decision, attributes)

    def get_description(self) -> str:
        return "Spy"
