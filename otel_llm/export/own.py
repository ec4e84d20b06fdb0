"""Official exporters in processes that fork: each process makes one of its own. SDK glue.

A child must not use its parent's connections. gRPC is worse: its C core keeps threads and locks
of its own, and a child that was forked while a call was under way hangs or crashes at its first
call. So with gRPC nothing is made before it is needed, and a fork waits for a call to end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import (
    OTLPMetricExporterMixin,  # only a private name exists for what reads the standard variables
)
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_llm.guard import guard

FORK_PATIENCE_S = 0.5
"""So long a fork waits for a call; then the call is broken off, and what it sent is lost."""
E = TypeVar("E", bound=SpanExporter | MetricExporter)


class PerProcess(Generic[E]):
    """The exporter of this process.

    Args:
        make: Makes one.
        native: Whether it keeps state in a C library, as gRPC does. Such a one is made when it
            is first needed, any other at once, so that wrong settings are told early.

    Raises:
        Exception: What *make* raises, if one is made at once.
    """

    def __init__(self, make: Callable[[], E], *, native: bool) -> None:
        self._make = make
        self.closed = False
        self._exporter: E | None = None
        self._begin()
        if native:
            _let_forks_wait_for(self)
        else:
            self._exporter = make()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = RLock()  # one may fork while exporting, to ask for credentials
        self._held = False
        self._exporter = None

    @contextmanager
    def used(self) -> Iterator[E]:
        """The exporter, made if need be; no fork comes in between if it is native."""
        self._renew()
        with self._lock:
            exporter = self._exporter = self._exporter or self._make()
            yield exporter

    def shutdown(self) -> None:
        """Shut it down, whoever uses it now; it is not made for that."""
        self._renew()
        self.closed = True
        if self._exporter is not None:
            self._exporter.shutdown()

    def before_fork(self) -> None:
        """Let a call end, or end it."""
        self._renew()
        self._held = self._lock.acquire(timeout=FORK_PATIENCE_S)
        if not self._held:
            hindrance, self._exporter = self._exporter, None
            if hindrance is not None:
                hindrance.shutdown()
            self._held = self._lock.acquire(timeout=FORK_PATIENCE_S)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._held:
            self._held = False
            self._lock.release()

    def _renew(self) -> None:
        if self._pid != os.getpid():
            self._begin()


class OwnSpanExporter(SpanExporter):
    """Exports spans with the exporter of the process that it is in."""

    def __init__(self, own: PerProcess[SpanExporter]) -> None:
        self.own = own

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export *spans*; FAILURE after `shutdown`. Raises what making an exporter raises."""
        if self.own.closed:
            return SpanExportResult.FAILURE
        with self.own.used() as exporter:
            return exporter.export(spans)

    def shutdown(self) -> None:
        """Shut this process's exporter down."""
        self.own.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Nothing is held back here."""
        return True


class OwnMetricExporter(OTLPMetricExporterMixin, MetricExporter):
    """Exports metrics with the OTLP exporter of the process that it is in."""

    def __init__(self, own: PerProcess[MetricExporter]) -> None:
        self._common_configuration()
        self.own = own

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export them; FAILURE after `shutdown`. Raises what making an exporter raises."""
        if self.own.closed:
            return MetricExportResult.FAILURE
        with self.own.used() as exporter:
            return exporter.export(metrics_data, timeout_millis, **kwargs)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002
        """Shut this process's exporter down."""
        self.own.shutdown()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        """Nothing is held back here."""
        return True


_waited_for: WeakSet[PerProcess[Any]] = WeakSet()
_forks_wait = False


def _let_forks_wait_for(own: PerProcess[Any]) -> None:
    """Take part in forks; hooks that are registered later, than gRPC's too, run earlier."""
    global _forks_wait  # noqa: PLW0603 - hooks cannot be taken back
    _waited_for.add(own)
    if not _forks_wait and hasattr(os, "register_at_fork"):
        _forks_wait = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)


def _before_fork() -> None:
    for each in list(_waited_for):
        with guard("fork"):
            each.before_fork()


def _after_fork_in_parent() -> None:
    for each in list(_waited_for):
        with guard("fork"):
            each.after_fork_in_parent()
