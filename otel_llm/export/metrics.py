"""The SDK's periodic reader, made fit for forked children and for exits that do not wait.

By itself it starts its thread again in a child, but keeps there the parent's sums, its lock even
if that was held, and the exporter's open connection; and at exit it waits up to 30 s.
"""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import (
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_llm.export import forks
from otel_llm.export.batch import BatchProcessor
from otel_llm.export.tallies import Tallies

if TYPE_CHECKING:
    from otel_llm.export.own import OwnMetricExporter

SHUTDOWN_TIMEOUT_S = 2.0


class ForkedMetricReader(PeriodicExportingMetricReader):
    """Exports metrics of this process.

    Args:
        exporter: Where they go, by a connection of each process's own.
        spans: The processor that is shut down after this reader. It begins to flush when the
            reader does, so that both together take no longer than the processor alone may.
        tallies: Histograms that are counted beside the SDK's.
        shutdown_timeout_s: The longest that `shutdown` takes, in seconds.
    """

    def __init__(
        self,
        exporter: OwnMetricExporter,
        *,
        spans: BatchProcessor | None = None,
        tallies: Tallies | None = None,
        shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
    ) -> None:
        super().__init__(exporter)
        self._spans = spans
        self._tallies = tallies or Tallies()
        self._timeout_ms = shutdown_timeout_s * 1000
        self._ended = False
        forks.follow(self)

    def after_fork(self) -> None:
        """Begin anew: with nothing counted, and no lock held."""
        self._export_lock = Lock()
        self._shutdown_event = Event()
        forget_counts(self)
        self._tallies.forget()
        if self._daemon_thread is not None and not self._ended:
            self._daemon_thread = Thread(target=self._ticker, name="otel_llm-metrics", daemon=True)
            self._daemon_thread.start()

    def _at_fork_reinit(self) -> None:
        """Do nothing: the SDK's hook is run for some forks, `after_fork` for all."""

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        """Export what the SDK has collected, and what was counted beside it."""
        self._tallies.join(metrics_data)
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Collect and export once more, for as long as there is time."""
        forks.renew()
        if self._ended:
            return
        self._ended = True
        if self._spans is not None:
            self._spans.hurry()
        super().shutdown(min(timeout_millis, self._timeout_ms), **kwargs)


def forget_counts(reader: MetricReader) -> None:
    """Put new sums, under new locks, in the place of a parent's; nothing public does it.

    All readers of the provider lose what was counted. A reader without a provider has none.
    """
    consumer = getattr(reader._collect, "__self__", None)  # noqa: SLF001
    if consumer is None:
        return
    fresh = type(consumer)(consumer._sdk_config, list(consumer._reader_storages))  # noqa: SLF001
    consumer._lock = fresh._lock  # noqa: SLF001
    consumer._reader_storages = fresh._reader_storages  # noqa: SLF001
