"""Trace and span ids on log records."""

from __future__ import annotations

import io
import logging
import logging.config
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from otel_llm.logs import TraceIds, correlate, ids, structlog_processor

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
IDS = {"trace_id": TRACE, "span_id": SPAN, "trace_flags": "01"}
CONTRIB = (
    "[trace_id=%(otelTraceID)s span_id=%(otelSpanID)s "
    "resource.service.name=%(otelServiceName)s trace_sampled=%(otelTraceSampled)s] - %(message)s"
)


@pytest.fixture
def undo() -> Iterator[Callable[[], None]]:
    """Correlation is on; gives what ends it."""
    undo = correlate()
    yield undo
    undo()


@pytest.fixture(autouse=True)
def clean_structlog() -> Iterator[None]:
    """Structlog as it was imported."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def in_span(flags: int = 1) -> Any:
    """A span of known ids that is current."""
    context = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=flags)  # type: ignore[arg-type]
    return use_span(NonRecordingSpan(context))


def logged(template: str, **extra: Any) -> str:
    """One message through a logger with a handler of this format."""
    stream = io.StringIO()
    logger, handler = logging.getLogger("app.of.test"), logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(template))
    logger.addHandler(handler)
    try:
        logger.warning("hello", extra=extra or None)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue().rstrip("\n")


@pytest.mark.usefixtures("undo")
class TestRecords:
    """Fields of a stdlib record."""

    template = "%(message)s %(trace_id)s %(span_id)s %(trace_flags)s"

    def test_in_a_span(self) -> None:
        """Hex digits."""
        with in_span():
            assert logged(self.template) == f"hello {TRACE} {SPAN} 01"

    def test_not_sampled(self) -> None:
        """The ids are there all the same."""
        with in_span(flags=0):
            assert logged(self.template) == f"hello {TRACE} {SPAN} 00"

    def test_without_a_span(self) -> None:
        """Empty, so that a format with these fields works everywhere."""
        assert logged(self.template) == "hello   "

    @pytest.mark.parametrize(("flags", "sampled"), [(1, True), (0, False)])
    def test_fields_of_contrib(self, flags: int, sampled: bool) -> None:
        """The format of opentelemetry-instrumentation-logging."""
        with in_span(flags):
            assert logged(CONTRIB) == (
                f"[trace_id={TRACE} span_id={SPAN} resource.service.name= "
                f"trace_sampled={sampled}] - hello"
            )

    def test_fields_of_contrib_without_a_span(self) -> None:
        """Zeros, as that package writes."""
        expected = "[trace_id=0 span_id=0 resource.service.name= trace_sampled=False] - hello"
        assert expected == logged(CONTRIB)

    def test_a_real_span(self) -> None:
        """Recorded or not, the current span is the one that is named."""
        for sampler in (ALWAYS_ON, ALWAYS_OFF):
            tracer = TracerProvider(sampler, shutdown_on_exit=False).get_tracer("t")
            with tracer.start_as_current_span("s") as span:
                context = span.get_span_context()
                assert logged("%(span_id)s") == f"{context.span_id:016x}"

    def test_extra(self) -> None:
        """An application's own field of that name is kept, and raises nothing."""
        with in_span():
            assert logged(self.template, trace_id="mine") == f"hello mine {SPAN} 01"

    def test_a_message_is_still_lazy(self) -> None:
        """Nothing is formatted for a level that is off."""

        class Never:
            def __str__(self) -> str:
                raise AssertionError

        logging.getLogger("app.of.test").debug("%s", Never())


class TestCorrelate:
    """Switching it on and off."""

    def test_service_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The argument, else the variable."""
        monkeypatch.setenv("OTEL_SERVICE_NAME", "of-variable")
        for argument, expected in ((None, "of-variable"), ("given", "given")):
            undo = correlate(argument)
            assert logged("%(otelServiceName)s") == expected
            undo()

    def test_a_factory_of_somebody(self, undo: Callable[[], None]) -> None:
        """A record factory, set before or later, works and is left alone."""
        before = logging.getLogRecordFactory()

        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = before(*args, **kwargs)
            record.team = "a"
            record.trace_id = "theirs"
            return record

        logging.setLogRecordFactory(factory)
        try:
            with in_span():
                assert logged("%(team)s %(trace_id)s %(span_id)s") == f"a theirs {SPAN}"
            undo()
            assert logging.getLogRecordFactory() is factory
        finally:
            logging.setLogRecordFactory(before)

    def test_undo(self) -> None:
        """Loggers are as before."""
        before = vars(logging.Logger)["makeRecord"]
        undo = correlate()
        assert vars(logging.Logger)["makeRecord"] is not before
        undo()
        undo()
        assert vars(logging.Logger)["makeRecord"] is before

    def test_twice(self) -> None:
        """The second call changes nothing, and gives the same undo."""
        before = vars(logging.Logger)["makeRecord"]
        first, second = correlate(), correlate()
        assert first is second
        second()
        assert vars(logging.Logger)["makeRecord"] is before

    def test_wrapped_since(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What somebody put on top stays, and ours below it does nothing more."""
        undo = correlate()
        ours = vars(logging.Logger)["makeRecord"]

        def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record: logging.LogRecord = ours(*args, **kwargs)
            return record

        monkeypatch.setattr(logging.Logger, "makeRecord", theirs)
        undo()
        assert vars(logging.Logger)["makeRecord"] is theirs
        record = logging.getLogger("a").makeRecord("a", 30, "f", 1, "m", (), None)
        assert "trace_id" not in vars(record)

    def test_a_failure_of_ours(
        self, undo: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record is logged all the same."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        monkeypatch.setattr(trace, "get_current_span", None)
        assert logged("%(message)s") == "hello"


class TestConfiguration:
    """In a logging configuration, as a file for vLLM has it."""

    def test_filter(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It fills the fields where nobody called `correlate`."""
        configuration: dict[str, Any] = {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"ids": {"()": "otel_llm.logs.TraceIds"}},
            "formatters": {"f": {"format": "[trace_id=%(trace_id)s] %(message)s"}},
            "handlers": {
                "h": {
                    "class": "logging.StreamHandler",
                    "formatter": "f",
                    "filters": ["ids"],
                    "stream": "ext://sys.stdout",
                }
            },
            "loggers": {"vllm.of.test": {"handlers": ["h"], "propagate": False}},
        }
        logging.config.dictConfig(configuration)
        with in_span():
            logging.getLogger("vllm.of.test").warning("in")
        logging.getLogger("vllm.of.test").warning("out")
        assert capsys.readouterr().out == f"[trace_id={TRACE}] in\n[trace_id=] out\n"

    def test_it_keeps_what_is_there(self) -> None:
        """A record that waited in a queue keeps the ids of its own span."""
        record = logging.makeLogRecord({"trace_id": "earlier"})
        with in_span():
            assert TraceIds().filter(record)
        assert vars(record)["trace_id"] == "earlier"


class TestStructlog:
    """Events of structlog."""

    def test_processor(self) -> None:
        """Ids in a span; no fields outside; what is bound stays."""
        assert structlog_processor(None, "info", {"event": "a"}) == {"event": "a"}
        with in_span():
            assert structlog_processor(None, "info", {"event": "a"}) == {"event": "a"} | IDS
            bound = structlog_processor(None, "info", {"trace_id": "mine"})
        assert bound["trace_id"] == "mine"

    @pytest.mark.parametrize("kind", [list, tuple])
    def test_the_chain_that_is_configured(self, kind: type) -> None:
        """The renderer comes after it, and the chain is as before when it is undone."""
        seen: list[Any] = []

        def renderer(_logger: Any, _method: str, event: Any) -> str:
            seen.append(dict(event))
            return ""

        chain = kind([structlog.processors.add_log_level, renderer])
        structlog.configure(processors=chain, logger_factory=structlog.ReturnLoggerFactory())
        undo = correlate()
        with in_span():
            structlog.get_logger().info("a")
        undo()
        with in_span():
            structlog.get_logger().info("b")
        assert seen == [
            {"event": "a", "level": "info"} | IDS,
            {"event": "b", "level": "info"},
        ]

    def test_loggers_in_use(self) -> None:
        """A logger that cached its chain has it too."""
        logger = structlog.get_logger()
        structlog.configure(
            processors=[structlog.processors.KeyValueRenderer(sort_keys=True)],
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=True,
        )
        logger.info("first")
        undo = correlate()
        with in_span():
            assert f"trace_id='{TRACE}'" in logger.info("second")
        undo()

    def test_named_in_the_chain_already(self) -> None:
        """It is not put there twice, and what the user named is not taken away."""
        chain = [structlog_processor, structlog.processors.KeyValueRenderer()]
        structlog.configure(processors=chain)
        undo = correlate()
        assert chain.count(structlog_processor) == 1
        undo()
        assert chain.count(structlog_processor) == 1


def test_ids_for_other_libraries() -> None:
    """A loguru patcher, say, takes what is there."""
    assert ids() == {}
    with in_span(TraceFlags.SAMPLED):
        assert ids() == IDS
