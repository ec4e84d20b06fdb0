"""The factory of request spans: providers and settings in, live requests out."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from opentelemetry import context as context_api
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from otel_llm import semconv
from otel_llm._version import __version__
from otel_llm.clock import SYSTEM_CLOCK, Anchor, Clock
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.metrics import Histograms, Instruments
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.values import Value
from otel_llm.timeline import RequestRecorder, Side, Timeline

_log = logging.getLogger("otel_llm")
_KINDS = {
    Side.CLIENT: SpanKind.CLIENT,
    Side.PROXY: SpanKind.INTERNAL,
    Side.SERVER: SpanKind.INTERNAL,
    Side.ENGINE: SpanKind.INTERNAL,
}


class Telemetry:
    """Starts request spans on one pair of providers.

    Providers default to the global ones, looked up when this is made; they are never changed.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        settings: EmitSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        finished_spans: FinishedSpans | None = None,
        histograms: Histograms | None = None,
        around: Around | None = None,
    ) -> None:
        self.around = around
        """What looks at the machine while requests are open; None costs nothing."""
        self.settings = settings or EmitSettings()
        self.finished_spans = finished_spans
        self.clock = clock
        provider = tracer_provider or trace.get_tracer_provider()
        self.tracer = provider.get_tracer(
            semconv.SCOPE, __version__, schema_url=self.settings.vocabulary.schema_url
        )
        meters = meter_provider or metrics.get_meter_provider()
        self.instruments = Instruments(meters, self.settings, histograms)
        if around is not None:
            around.observe(meters.get_meter(semconv.SCOPE, __version__))
        self._open: dict[int, weakref.ref[LiveRequest]] = {}
        _alive.add(self)
        _finish_at_exit()

    def start(
        self,
        info: RequestInfo,
        side: Side,
        *,
        parent: Context | None = None,
        anchor: Anchor | None = None,
        links: Sequence[Link] = (),
    ) -> LiveRequest:
        """Start the one request span of a request on one side.

        Args:
            info: What is known of the request; samplers see all of it.
            side: From where the request is seen.
            parent: The context whose span is the parent; the current one by default.
            anchor: When the request arrived, if that was earlier than now.
            links: Spans that belong to the request without being its parent.
        """
        recorder = RequestRecorder(side, clock=self.clock, anchor=anchor)
        context = context_api.get_current() if parent is None else parent
        span = self.tracer.start_span(
            info.span_name,
            context=context,
            kind=_KINDS[side],
            attributes=_start_attributes(info, side),
            links=links,
            start_time=recorder.anchor.wall_ns,
        )
        if not span.is_recording():
            _explain(context)
        live = LiveRequest(self, info, recorder, span, context)
        self._open[id(live)] = live.reference
        return live

    def start_untraced(
        self, info: RequestInfo, side: Side, *, parent: Context, anchor: Anchor
    ) -> LiveRequest:
        """As `start`, but without a span: only metrics come of it."""
        recorder = RequestRecorder(side, clock=self.clock, anchor=anchor)
        span = trace.NonRecordingSpan(trace.get_current_span(parent).get_span_context())
        return LiveRequest(self, info, recorder, span, parent)

    def join(self, span: Span, info: RequestInfo, side: Side, *, parent: Context) -> LiveRequest:
        """As `start`, on the *span* that another library has made for the same request.

        Only what is ours is written on it, and that library ends it.
        """
        recorder = RequestRecorder(side, clock=self.clock)
        span.set_attributes({semconv.SIDE: side.value})
        live = LiveRequest(self, info, recorder, span, parent, joined=True)
        self._open[id(live)] = live.reference
        return live

    @property
    def silent(self) -> bool:
        """True if nothing at all is recorded of a request whose span is not sampled."""
        return not self.instruments.enabled and not self.settings.slo

    def step_back(self) -> None:
        """Write no phase spans from now on: the engine writes its own. The summary stays."""
        self.settings = replace(self.settings, phase_spans=False)

    def finish_open(self) -> None:
        """End every request that is still open, as abandoned; called when the process exits."""
        for reference in list(self._open.values()):
            if (live := reference()) is not None:
                live.abandon()

    def disown_open(self) -> None:
        """Forget every open request without ending it."""
        for reference in list(self._open.values()):
            if (live := reference()) is not None:
                live.disown()
        self._open.clear()

    def closed(self, live: LiveRequest) -> None:
        """Forget a request that has ended."""
        self._open.pop(id(live), None)


class FinishedSpans(Protocol):
    """Takes spans that are known whole, from start to end, when they are made."""

    def __call__(
        self, parent: Span, children: Iterable[tuple[str, Mapping[str, str], int, int]]
    ) -> None:
        """Hand finished children of *parent* to whoever exports spans.

        Of each its name, its attributes, its start and its end, nanoseconds since the epoch.
        """


class Around(Protocol):
    """Looks at the machine around requests. Neither method raises."""

    def __call__(
        self, recorder: RequestRecorder
    ) -> Callable[[Timeline], Mapping[str, Value]] | None:
        """A request begins; what is returned gives attributes of its span when it ends."""

    def observe(self, meter: metrics.Meter) -> None:
        """Create metrics that need no request."""


def _start_attributes(info: RequestInfo, side: Side) -> dict[str, Value]:
    found: dict[str, Value] = {
        semconv.OPERATION: info.operation,
        semconv.PROVIDER: info.provider,
        semconv.SIDE: side.value,
    }
    if info.model:
        found[semconv.REQUEST_MODEL] = info.model
    if info.server_address is not None:
        found[semconv.SERVER_ADDRESS] = info.server_address
    if info.server_port is not None:
        found[semconv.SERVER_PORT] = info.server_port
    found.update(info.attributes)
    return found


def _explain(parent: Context) -> None:
    caller = trace.get_current_span(parent).get_span_context()
    if caller.is_valid and not caller.trace_flags.sampled:
        _log.debug("no span is recorded: the caller's trace is not sampled")


_alive: weakref.WeakSet[Telemetry] = weakref.WeakSet()


def _finish_all() -> None:
    for telemetry in list(_alive):
        telemetry.finish_open()


def _finish_at_exit() -> None:
    """Run before the exit handlers of providers, which flush; the last registered runs first."""
    atexit.unregister(_finish_all)
    atexit.register(_finish_all)


def _disown_all() -> None:
    """In a forked child: open requests are the parent's, and end there."""
    for telemetry in list(_alive):
        telemetry.disown_open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
