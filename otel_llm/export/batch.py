"""Finished spans, kept until a batch of them is exported from a thread of its own.

Takes the place of the SDK's processor, from which it differs where a receiver is in trouble:
losses are counted and told of twice and not per batch, an exit takes seconds and not a minute,
a forked child begins anew however it was forked, and a request path never waits for an export.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread

from opentelemetry import context as context_api
from opentelemetry.context import (  # only private names exist for what all libraries look at
    _SUPPRESS_HTTP_INSTRUMENTATION_KEY,
    _SUPPRESS_INSTRUMENTATION_KEY,
    Context,
)
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_llm import semconv
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.errors import ConfigurationError
from otel_llm.export import forks
from otel_llm.export.limits import within
from otel_llm.export.losses import EXPORT_FAILED, QUEUE_FULL, SHUTDOWN, Losses
from otel_llm.guard import guard

SHUTDOWN_TIMEOUT_S = 5.0
LAST_WORD_S = 0.2
"""How much of the shutdown is kept for a request that is broken off to say that it was."""
_SUPPRESSED = (
    _SUPPRESS_INSTRUMENTATION_KEY,
    _SUPPRESS_HTTP_INSTRUMENTATION_KEY,
    "suppress_instrumentation",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The standard variables `OTEL_BSP_*`; times in milliseconds, sizes in spans."""

    schedule_delay_ms: int = 5000
    export_timeout_ms: int = 30_000
    max_queue_size: int = 2048
    max_export_batch_size: int = 512

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Limits:
        """Read the variables; raises `ConfigurationError` that names the variable at fault."""
        queue = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        batch = _number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(512, queue))
        if batch > queue:
            raise ConfigurationError(
                f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {batch}; it must be at most the queue's size, "
                f"OTEL_BSP_MAX_QUEUE_SIZE, which is {queue}"
            )
        return cls(
            schedule_delay_ms=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000),
            export_timeout_ms=_number(environ, "OTEL_BSP_EXPORT_TIMEOUT", 30_000),
            max_queue_size=queue,
            max_export_batch_size=batch,
        )


class BatchProcessor(SpanProcessor):
    """Exports sampled spans in batches: when one is full, or when the delay has passed.

    Args:
        exporter: Where batches go. It may offer `interrupt()`, which ends its `export` from
            another thread, and `losses`, if it counts by itself what it could not deliver.
        environ: Where `OTEL_BSP_*` are read.
        shutdown_timeout_s: The longest that `shutdown` takes, in seconds, whatever the exporter
            does; spans that could not be exported by then are lost.

    Raises:
        ConfigurationError: A variable holds what it cannot.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        environ: Mapping[str, str],
        *,
        shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
    ) -> None:
        self.exporter = exporter
        self.limits = Limits.from_environment(environ)
        self._timeout_s = shutdown_timeout_s
        self._most = self.limits.max_queue_size
        self._full = self.limits.max_export_batch_size
        owned: Losses | None = getattr(exporter, "losses", None)
        self._counts_itself = owned is not None
        self._losses = owned or Losses()
        self._closed = False
        self.after_fork()
        forks.follow(self)

    def after_fork(self) -> None:
        """Begin anew in a child: the queue is the parent's, its thread is not here."""
        self._pid = os.getpid()
        self._queue: deque[ReadableSpan] = deque()
        self._flushes: deque[Event] = deque()
        self._wake = Event()
        self._lock = Lock()
        self._worker: Thread | None = None
        self._exporting = 0
        self._given_up = False
        self._hurried_ns: int | None = None
        if not self._counts_itself:
            self._losses.renew()

    @property
    def lost(self) -> dict[str, int]:
        """Spans lost in this process, for each reason.

        `queue_full`, `export_failed`, `rejected` by the receiver, `shutdown`: given up there.
        """
        return self._losses.counts

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """See to it that a thread of this process exports; the first span starts it."""
        if self._worker is None or self._pid != os.getpid():
            self._begin()

    def on_end(self, span: ReadableSpan) -> None:
        """Keep *span*; never waits, whatever the exporter does."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        waiting = len(self._queue)
        if self._closed or waiting >= self._most:
            self._losses.add(SHUTDOWN if self._closed else QUEUE_FULL, 1)
            return
        self._queue.append(span)
        if self._worker is None:  # started by no span of this process
            self._begin()
        if waiting + 1 >= self._full and not self._wake.is_set():
            self._wake.set()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what has ended until now; False if time ran out or spans were lost."""
        before = sum(self.lost.values())
        if self._pid != os.getpid():
            self._begin()
        worker = self._worker
        if self._closed and (worker is None or not worker.is_alive()):
            return before == sum(self.lost.values())
        if worker is None:
            self.turn(due=True)
        elif not self._hand_over().wait(timeout_millis / 1000):
            return False
        return before == sum(self.lost.values())

    def hurry(self) -> None:
        """Export now without waiting for it, as a shutdown is near; its time runs from here."""
        self._hurried_ns = SYSTEM_CLOCK.monotonic_ns()
        if self._worker is not None:
            self._hand_over()

    def shutdown(self) -> None:
        """Export what can be exported in time, then end; later spans are lost."""
        forks.renew()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        left_s = self._left_s()
        self._wake.set()
        worker = self._worker
        if worker is None:
            self.turn(due=True)
        else:
            worker.join(max(left_s - LAST_WORD_S, 0))
            if worker.is_alive():
                self._give_up(worker, min(left_s, LAST_WORD_S))
        self._losses.end()

    def _left_s(self) -> float:
        if self._hurried_ns is None:
            return self._timeout_s
        passed_s = (SYSTEM_CLOCK.monotonic_ns() - self._hurried_ns) / 1e9
        return self._timeout_s - passed_s if passed_s < self._timeout_s else self._timeout_s

    def _give_up(self, worker: Thread, last_word_s: float) -> None:
        """Break off the export; what was not exported is lost."""
        self._given_up = True
        self._interrupt()
        worker.join(last_word_s)
        left = len(self._queue)
        self._queue.clear()
        self._losses.give_up(left + self._exporting)

    def _begin(self) -> None:
        """Start this process's thread; in a child of a fork without hooks, begin anew first."""
        forks.renew()
        with self._lock:
            if self._worker is not None or self._closed:
                return
            worker = Thread(
                target=_work,
                args=(weakref.ref(self), self._wake, self.limits.schedule_delay_ms / 1000),
                name="otel_llm-export",
                daemon=True,
            )
            try:
                worker.start()
            except RuntimeError:  # the interpreter is ending: shutdown will export
                return
            weakref.finalize(self, self._wake.set).atexit = False
            self._worker = worker

    def _hand_over(self) -> Event:
        """Ask the thread to export everything; the event tells when it has."""
        done = Event()
        self._flushes.append(done)
        self._wake.set()
        return done

    def turn(self, *, due: bool) -> bool:
        """Export full batches, or all if that is due or asked for; True when it was the last.

        For the processor's own thread, and for whoever ends it when there is none.
        """
        last = self._closed
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        left = len(self._queue)
        while left > 0 and not self._given_up and (due or flushes or last or left >= self._full):
            batch = self._take(min(left, self._full))
            left -= self._full
            self._export(batch)
        for done in flushes:
            done.set()
        if last:
            with guard("export.shutdown"):
                self.exporter.shutdown()
        return last

    def _take(self, most: int) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        try:
            while len(batch) < most:
                batch.append(self._queue.popleft())
        except IndexError:  # given up by another thread
            pass
        return batch

    def _export(self, batch: list[ReadableSpan]) -> None:
        self._exporting = len(batch)
        token = context_api.attach(_suppressed())
        try:
            with within(self.limits.export_timeout_ms / 1000, self._interrupt):
                failed = self.exporter.export(batch) is not SpanExportResult.SUCCESS
            why = ""
        except Exception as error:  # noqa: BLE001 - an exporter of anybody's
            failed, why = True, type(error).__name__
        finally:
            context_api.detach(token)
        if failed and (why or not self._counts_itself):
            self._losses.add(EXPORT_FAILED, len(batch), why)
        if why or not self._counts_itself:
            self._losses.settle(delivered=not failed)
        self._exporting = 0

    def _interrupt(self) -> None:
        interrupt = getattr(self.exporter, "interrupt", None)
        if interrupt is not None:
            with guard("export.interrupt"):
                interrupt()


def observe(meter: Meter, processor: BatchProcessor) -> None:
    """Offer the processor's losses as a counter with the attribute `reason`.

    It is read when metrics are collected and records nothing by itself, so that losing spans
    never makes telemetry. The processor is held weakly.
    """
    reference = weakref.ref(processor)

    def read(_options: CallbackOptions) -> Iterable[Observation]:
        found = reference()
        lost = {} if found is None else found.lost
        return [Observation(n, {semconv.LOST_REASON: reason}) for reason, n in lost.items()]

    meter.create_observable_counter(
        semconv.EXPORT_LOST_SPANS, [read], semconv.SPANS, "Spans that were not exported."
    )


def _work(reference: weakref.ref[BatchProcessor], wake: Event, delay_s: float) -> None:
    """Export until the processor is shut down, or nobody holds it any more."""
    last = False
    while not last:
        woken = wake.wait(delay_s)
        wake.clear()
        processor = reference()
        if processor is None:
            return
        with guard("export"):
            last = processor.turn(due=not woken)
        del processor


def _suppressed() -> Context:
    """A context in which no instrumentation makes spans of the exporter's own requests."""
    context = Context()
    for key in _SUPPRESSED:
        context = context_api.set_value(key, value=True, context=context)
    return context


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (len(text) < 10 and text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(f"{name} is {text!r}; it must be a whole number above 0")
    return int(text)
