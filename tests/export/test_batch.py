"""The batch processor before exporters that work, fail, hang, trickle, and come back."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.context import get_value
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_llm import ConfigurationError
from otel_llm.export import http
from otel_llm.export.batch import BatchProcessor, Limits, observe
from otel_llm.export.http import HttpSpanExporter
from otel_llm.export.losses import QUIET_NS, Losses
from otel_llm.testing import ManualClock
from tests.export.test_http import Scripted
from tests.fakes.collectors import UNRESOLVED, hanging, refusing, trickling

REPO = Path(__file__).parents[2]
NONE = {"queue_full": 0, "export_failed": 0, "rejected": 0, "shutdown": 0}
NEVER = {"OTEL_BSP_SCHEDULE_DELAY": "60000"}
OK, FAILED = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


class Keeping(SpanExporter):
    """Keeps batches; fails, raises or blocks as told."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.results: list[SpanExportResult | Exception] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.traced: list[bool] = []
        self.shut = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.open.wait(20)
        self.traced.append(
            is_instrumentation_enabled() or not get_value("suppress_instrumentation")
        )
        result = self.results.pop(0) if self.results else OK
        if isinstance(result, Exception):
            raise result
        if result is OK:
            self.batches.append([span.name for span in spans])
        return result

    def shutdown(self) -> None:
        self.shut += 1


class Setup:
    """A provider with the processor before an exporter."""

    def __init__(self, exporter: SpanExporter, environ: dict[str, str], **given: Any) -> None:
        self.processor = BatchProcessor(exporter, environ, **given)
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("app")

    def end(self, *names: str) -> None:
        """End a span of each name."""
        for name in names:
            self.tracer.start_span(name).end()

    def shutdown_s(self) -> float:
        """Shut down, and tell how many seconds that took."""
        started = time.monotonic()
        self.provider.shutdown()
        return time.monotonic() - started


@pytest.fixture
def exporter() -> Iterator[Keeping]:
    """An exporter that is let go at the end."""
    made = Keeping()
    yield made
    made.open.set()


def until(true: Callable[[], object], seconds: float = 5) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class TestVariables:
    """`OTEL_BSP_*`."""

    def test_defaults(self) -> None:
        """Those of the specification."""
        assert Limits(5000, 30_000, 2048, 512) == Limits.from_environment({})

    def test_given(self) -> None:
        """All four; an empty one counts as unset."""
        environ = {
            "OTEL_BSP_SCHEDULE_DELAY": "1",
            "OTEL_BSP_EXPORT_TIMEOUT": " 2 ",
            "OTEL_BSP_MAX_QUEUE_SIZE": "4",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "3",
        }
        assert Limits(1, 2, 4, 3) == Limits.from_environment(environ)
        assert Limits() == Limits.from_environment(dict.fromkeys(environ, ""))

    def test_a_short_queue_alone(self) -> None:
        """The batch that nobody spoke of is no larger than the queue."""
        assert Limits.from_environment({"OTEL_BSP_MAX_QUEUE_SIZE": "9"}).max_export_batch_size == 9

    @pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "1" * 10, "\u0663"])
    @pytest.mark.parametrize(
        "name", ["SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE"]
    )
    def test_wrong(self, name: str, value: str) -> None:
        """Told by name."""
        with pytest.raises(ConfigurationError, match=f"OTEL_BSP_{name} is '{value}'"):
            BatchProcessor(Keeping(), {f"OTEL_BSP_{name}": value})

    def test_a_batch_larger_than_the_queue(self) -> None:
        """It could never be full."""
        environ = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5"}
        with pytest.raises(ConfigurationError, match="OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 5"):
            BatchProcessor(Keeping(), environ)


class TestBatches:
    """When spans are exported."""

    def test_a_full_batch_at_once(self, exporter: Keeping) -> None:
        """In the order of their end, without waiting for the delay; the rest stays."""
        made = Setup(exporter, {**NEVER, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"})
        made.end("a", "b", "c")
        until(lambda: exporter.batches)
        assert exporter.batches == [["a", "b"]]
        made.provider.shutdown()
        assert exporter.batches == [["a", "b"], ["c"]]

    def test_after_the_delay(self, exporter: Keeping) -> None:
        """A batch that is not full."""
        made = Setup(exporter, {"OTEL_BSP_SCHEDULE_DELAY": "30"})
        made.end("a")
        until(lambda: exporter.batches == [["a"]])
        made.provider.shutdown()

    def test_not_before(self, exporter: Keeping) -> None:
        """Neither full nor due: nothing is exported."""
        made = Setup(exporter, NEVER)
        made.end("a")
        time.sleep(0.1)
        assert exporter.batches == []
        made.provider.shutdown()

    def test_sampled_spans_only(self, exporter: Keeping) -> None:
        """A recorded span that is not sampled is none for export."""
        made = Setup(exporter, NEVER)
        made.provider.sampler = made.tracer.sampler = ALWAYS_OFF  # type: ignore[attr-defined]
        made.end("a")
        made.processor.on_end(ReadableSpan("without a context"))
        made.provider.shutdown()
        assert (exporter.batches, made.processor.lost) == ([], NONE)

    def test_flush(self, exporter: Keeping) -> None:
        """Everything that has ended, in one call."""
        made = Setup(exporter, {**NEVER, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"})
        assert made.provider.force_flush()
        made.end("a", "b", "c")
        assert made.provider.force_flush()
        assert [name for batch in exporter.batches for name in batch] == ["a", "b", "c"]
        made.provider.shutdown()

    def test_flush_says_if_spans_were_lost(self, exporter: Keeping) -> None:
        """False, though it came to its end."""
        exporter.results = [FAILED]
        made = Setup(exporter, NEVER)
        made.end("a")
        assert not made.processor.force_flush()
        made.provider.shutdown()

    def test_flush_in_time(self, exporter: Keeping) -> None:
        """It waits for a stuck exporter no longer than it may."""
        exporter.open.clear()
        made = Setup(exporter, NEVER, shutdown_timeout_s=0.3)
        made.end("a")
        started = time.monotonic()
        assert not made.processor.force_flush(200)
        assert 0.2 <= time.monotonic() - started < 8
        made.provider.shutdown()

    def test_shutdown_once(self, exporter: Keeping) -> None:
        """The exporter is shut down with it, after the last batch, and not twice."""
        made = Setup(exporter, NEVER)
        made.end("a")
        made.provider.shutdown()
        made.processor.shutdown()
        assert (exporter.batches, exporter.shut) == ([["a"]], 1)

    def test_without_a_span(self, exporter: Keeping) -> None:
        """No thread was started; the exporter is shut down all the same."""
        before = set(threading.enumerate())
        made = Setup(exporter, {})
        assert set(threading.enumerate()) <= before
        made.provider.shutdown()
        assert exporter.shut == 1

    def test_dropped(self, exporter: Keeping) -> None:
        """A processor that nobody holds is collected, and its thread ends."""
        made = Setup(exporter, NEVER)
        made.end("a")
        worker = made.processor._worker
        gone = weakref.ref(made.processor)
        del made
        gc.collect()
        assert gone() is None
        assert worker is not None
        worker.join(5)
        assert not worker.is_alive()


class TestRequestPath:
    """What ending a span costs while the exporter is stuck."""

    def test_never_waits(self, exporter: Keeping) -> None:
        """Spans are taken, then lost, while an export holds everything it can hold."""
        exporter.open.clear()
        made = Setup(
            exporter,
            {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"},
            shutdown_timeout_s=0.3,
        )
        made.end("a", "b")
        assert exporter.entered.wait(5)
        started = time.monotonic()
        made.end(*"cdefgh")
        assert time.monotonic() - started < 5
        assert made.processor.lost == {**NONE, "queue_full": 2}
        made.provider.shutdown()
        assert made.processor.lost == {**NONE, "queue_full": 2, "shutdown": 6}

    def test_nothing_is_written(self, exporter: Keeping, caplog: pytest.LogCaptureFixture) -> None:
        """A log handler may block: lines come from the exporting thread alone."""
        exporter.open.clear()
        made = Setup(
            exporter,
            {"OTEL_BSP_MAX_QUEUE_SIZE": "1", "OTEL_BSP_SCHEDULE_DELAY": "60000"},
        )
        made.end("a")
        assert exporter.entered.wait(5)
        made.end("b", "c", "d")
        assert caplog.records == []
        exporter.open.set()
        made.provider.shutdown()
        assert caplog.records != []


class TestLosses:
    """Counts, and the two lines of a trouble."""

    def test_one_line_when_it_begins_and_one_when_over(
        self, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """However many batches fail, and only when nothing was lost for a while."""
        losses = Losses(clock)
        for _ in range(50):
            losses.add("export_failed", 10, "OSError")
            losses.settle(delivered=False)
        losses.settle(delivered=True)
        assert len(caplog.records) == 1
        clock.advance(QUIET_NS / 1e9)
        losses.settle(delivered=False)
        assert len(caplog.records) == 1
        losses.settle(delivered=True)
        losses.settle(delivered=True)
        assert caplog.messages == [
            "10 spans were lost (export_failed 10): OSError; no further line until it is over",
            "spans arrive again; meanwhile 500 spans were lost (export_failed 500)",
        ]

    def test_the_next_trouble(self, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
        """Its lines count its own losses."""
        losses = Losses(clock)
        for spans in (3, 4):
            losses.add("queue_full", spans)
            losses.settle(delivered=True)
            clock.advance(QUIET_NS / 1e9)
            losses.settle(delivered=True)
        assert [message.split(" spans")[0].split()[-1] for message in caplog.messages] == [
            "3", "3", "4", "4",
        ]  # fmt: skip
        assert losses.counts["queue_full"] == 7

    def test_the_last_line(self, caplog: pytest.LogCaptureFixture) -> None:
        """Spans lost at the end are told of; a process that lost none says nothing."""
        losses = Losses()
        losses.end()
        losses.give_up(2)
        losses.add("export_failed", 2)
        losses.end()
        assert caplog.messages == ["2 spans were lost (shutdown 2), until shutdown"]

    def test_failures_of_an_exporter(
        self, exporter: Keeping, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Said or raised, they cost the batch and nothing else; no message is quoted."""
        exporter.results = [FAILED, ValueError("secret")]
        made = Setup(exporter, NEVER)
        for name in ("a", "b", "c"):
            made.end(name)
            made.processor.force_flush()
        made.provider.shutdown()
        assert exporter.batches == [["c"]]
        assert made.processor.lost == {**NONE, "export_failed": 2}
        assert len(caplog.records) == 2
        assert "secret" not in caplog.text

    def test_after_shutdown(self, exporter: Keeping) -> None:
        """Spans that end then are counted."""
        made = Setup(exporter, NEVER)
        made.provider.shutdown()
        made.end("a")
        assert made.processor.lost == {**NONE, "shutdown": 1}

    def test_metric(self, exporter: Keeping) -> None:
        """Read when metrics are collected, for every reason; no span comes of it."""
        exporter.results = [FAILED]
        made = Setup(exporter, NEVER)
        made.end("a", "b")
        made.processor.force_flush()
        reader = InMemoryMetricReader()
        meters = MeterProvider([reader], shutdown_on_exit=False)
        observe(meters.get_meter("otel_llm"), made.processor)
        data: Any = reader.get_metrics_data()
        (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
        points = {point.attributes["reason"]: point.value for point in metric.data.data_points}
        assert (metric.name, points) == ("otel_llm.export.lost_spans", {**NONE, "export_failed": 2})
        made.provider.shutdown()
        meters.shutdown()
        assert exporter.batches == []

    def test_metric_of_a_dropped_processor(self, exporter: Keeping) -> None:
        """It does not hold what it observes."""
        reader = InMemoryMetricReader()
        meters = MeterProvider([reader], shutdown_on_exit=False)
        processor = BatchProcessor(exporter, {})
        observe(meters.get_meter("otel_llm"), processor)
        gone = weakref.ref(processor)
        del processor
        gc.collect()
        assert (gone(), reader.get_metrics_data()) == (None, None)
        meters.shutdown()


class TestTracing:
    """The exporter's own requests."""

    def test_the_keys(self, exporter: Keeping) -> None:
        """Every way of asking whether to instrument is answered no, while flushing inline too."""
        made = Setup(exporter, NEVER)
        made.end("a")
        made.provider.shutdown()
        assert exporter.traced == [False]

    def test_requests(self) -> None:
        """With `requests` instrumented, a request of the application's is traced, ours is not."""
        receiver = Scripted()
        with receiver.listening() as exporter:
            made = Setup(exporter, NEVER)
            RequestsInstrumentor().instrument(tracer_provider=made.provider)
            try:
                requests.post(receiver.url, b"", timeout=5)
                made.provider.force_flush()
                made.provider.force_flush()
                made.provider.shutdown()
            finally:
                RequestsInstrumentor().uninstrument()
        assert receiver.names == [[], ["POST"]]


class TestCollectors:
    """Over HTTP, to collectors in trouble."""

    def test_shutdown_while_it_refuses(self, caplog: pytest.LogCaptureFixture) -> None:
        """In time, with what was lost."""
        made = Setup(HttpSpanExporter(refusing(), {}), NEVER, shutdown_timeout_s=0.7)
        made.end("a", "b")
        assert made.shutdown_s() < 8
        assert made.processor.lost == {**NONE, "export_failed": 2}
        (message,) = caplog.messages
        assert "2 spans were lost (export_failed 2)" in message
        assert "ConnectionError" in message

    @pytest.mark.parametrize("collector", [hanging, trickling])
    def test_shutdown_while_it_does_not_end(self, collector: Any) -> None:
        """The request is broken off in time; its spans are counted once."""
        with collector() as url:
            made = Setup(HttpSpanExporter(url, {}), NEVER, shutdown_timeout_s=0.7)
            made.end("a", "b")
            assert made.shutdown_s() < 8
            assert made.processor.lost == {**NONE, "export_failed": 2}

    def test_a_name_that_does_not_resolve(self) -> None:
        """As one that refuses."""
        made = Setup(HttpSpanExporter(UNRESOLVED, {}), NEVER, shutdown_timeout_s=0.7)
        made.end("a")
        assert made.shutdown_s() < 8
        assert sum(made.processor.lost.values()) == 1

    @pytest.mark.parametrize("collector", [hanging, trickling])
    def test_the_timeout_holds_for_a_request(self, collector: Any) -> None:
        """A byte now and then does not stretch it."""
        with collector() as url:
            exporter = HttpSpanExporter(url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"})
            made = Setup(exporter, NEVER)
            made.end("a")
            started = time.monotonic()
            assert not made.processor.force_flush(5000)
            assert time.monotonic() - started < 4.5
            made.provider.shutdown()

    def test_the_timeout_of_an_export(self) -> None:
        """`OTEL_BSP_EXPORT_TIMEOUT` ends what the exporter would go on with."""
        with hanging() as url:
            made = Setup(HttpSpanExporter(url, {}), {**NEVER, "OTEL_BSP_EXPORT_TIMEOUT": "300"})
            made.end("a")
            started = time.monotonic()
            assert not made.processor.force_flush(5000)
            assert time.monotonic() - started < 4.5
            made.provider.shutdown()

    def test_recovery(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """After answers of 503 spans arrive again, in the same process, and a line says so."""
        monkeypatch.setattr(http, "FIRST_BACKOFF_S", 60)
        monkeypatch.setattr("otel_llm.export.losses.QUIET_NS", 0)
        caplog.set_level(logging.INFO, "otel_llm")
        receiver = Scripted(503, 503)
        with receiver.listening() as exporter:
            made = Setup(exporter, NEVER)
            for name in ("a", "b", "c", "d"):
                made.end(name)
                made.processor.force_flush()
            made.provider.shutdown()
        assert receiver.names == [["a"], ["b"], ["c"], ["d"]]
        assert made.processor.lost == {**NONE, "export_failed": 2}
        assert len(caplog.messages) == 2
        assert caplog.messages[1] == (
            "spans arrive again; meanwhile 2 spans were lost (export_failed 2)"
        )

    def test_recovery_after_it_was_down(self) -> None:
        """A collector that comes up later on the same port gets what ends then."""
        receiver = Scripted()
        with receiver.listening():
            pass
        exporter = HttpSpanExporter(receiver.url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"})
        made = Setup(exporter, NEVER)
        made.end("a")
        assert not made.processor.force_flush()
        with receiver.listening(receiver.port):
            made.end("b")
            assert made.processor.force_flush()
            made.provider.shutdown()
        assert receiver.names == [["b"]]


EXIT = """
    import socket, time, otel_llm
    {before}
    otel_llm.configure(endpoint={url!r}, metrics=False)
    with otel_llm.trace_request("chat", model="tiny", provider="demo"):
        pass
    print(time.monotonic())
"""


BUSY_EXIT_S = 15
"""Five seconds, and what a busy machine adds; nothing of what is waited for would end before."""


def exit_s(url: str, before: str = "") -> float:
    """Seconds from the end of a process's script to the end of the process."""
    script = textwrap.dedent(EXIT).format(url=url, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=REPO,
    )
    return time.monotonic() - float(done.stdout)


class TestExit:
    """The interpreter's end."""

    @pytest.mark.parametrize("collector", [hanging, trickling])
    def test_a_collector_that_does_not_answer(self, collector: Any) -> None:
        """The process ends after five seconds, by itself and well."""
        with collector() as url:
            assert 4.5 < exit_s(url) < BUSY_EXIT_S

    def test_a_resolver_that_does_not_answer(self) -> None:
        """What nothing can break off is left alone."""
        before = "socket.getaddrinfo = lambda *a, **k: time.sleep(60)"
        assert 4.5 < exit_s("http://collector.invalid:4318", before) < BUSY_EXIT_S
