"""Trace and span ids on log records: stdlib logging, structlog, vLLM.

    undo = correlate()
    logging.basicConfig(format="%(levelname)s %(message)s trace_id=%(trace_id)s")

A stdlib record gets `trace_id`, `span_id` and `trace_flags` as hex digits, empty when no span is
current, and the fields of opentelemetry-instrumentation-logging (`otelTraceID`, `otelSpanID`,
`otelTraceSampled`, `otelServiceName`), so that formats written for it work. What somebody else
put there under one of these names stays.

vLLM logs through stdlib logging with a format of its own, which is not touched. To see ids there,
give vLLM a logging configuration with this format and this filter; the filter fills the fields
where `correlate` has not been called:

    {"version": 1, "disable_existing_loggers": false,
     "filters": {"ids": {"()": "otel_llm.logs.TraceIds"}},
     "formatters": {"vllm": {"()": "vllm.logging_utils.NewLineFormatter",
       "format": "%(levelname)s %(asctime)s [%(fileinfo)s:%(lineno)d] [trace_id=%(trace_id)s
 span_id=%(span_id)s] %(message)s"}},
     "handlers": {"vllm": {"class": "logging.StreamHandler", "formatter": "vllm",
       "filters": ["ids"]}},
     "loggers": {"vllm": {"handlers": ["vllm"], "level": "INFO", "propagate": false}}}

structlog: `structlog_processor` is put before the renderer of the chain that is configured when
`correlate` is called. Name it in the chain yourself if structlog is configured later.

loguru: `logger.configure(patcher=lambda record: record["extra"].update(ids()))`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from opentelemetry import trace

from otel_llm.adapters.patching import Patches
from otel_llm.guard import guard

_NONE: dict[str, Any] = {
    "trace_id": "",
    "span_id": "",
    "trace_flags": "",
    "otelTraceID": "0",
    "otelSpanID": "0",
    "otelTraceSampled": False,
}
_active: list[Callable[[], None]] = []
"""The undo of the call in force, if there is one."""


def ids() -> dict[str, str]:
    """`trace_id`, `span_id` and `trace_flags` of the current span in hex; empty without one."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "trace_flags": f"{context.trace_flags:02x}",
    }


def correlate(service_name: str | None = None) -> Callable[[], None]:
    """Put ids on every log record made from now on; a second call changes nothing.

    Records are stamped where loggers make them, after the record factory, whoever set that, and
    after `extra`: a field set by the factory would make `extra={"trace_id": ...}` raise.

    Args:
        service_name: For `otelServiceName`; otherwise `OTEL_SERVICE_NAME`, else empty.

    Returns:
        A function that undoes it; what others have wrapped since stays in place, inert.
    """
    if _active:
        return _active[0]
    service = service_name or os.environ.get("OTEL_SERVICE_NAME", "")
    patches = Patches("logs")
    chain: list[Any] = []

    def make(before: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
        def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = before(*args, **kwargs)
            if patches.active:
                with guard("logs.record"):
                    _stamp(record, service)
            return record

        return make_record

    def undo() -> None:
        if undo in _active:
            _active.remove(undo)
            patches.undo()
            if structlog_processor in chain:
                chain.remove(structlog_processor)

    patches.replace(logging.Logger, "makeRecord", make)
    with guard("logs.structlog"):
        chain = _join_structlog() or chain
    _active.append(undo)
    return undo


class TraceIds(logging.Filter):
    """For a handler in a logging configuration: fills the fields, and lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamp *record* with the ids of the span that is current, unless it has some."""
        with guard("logs.filter"):
            _stamp(record, os.environ.get("OTEL_SERVICE_NAME", ""))
        return True


def structlog_processor(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add the fields of `ids` to a structlog event; nothing without a span."""
    with guard("logs.structlog"):
        for name, value in ids().items():
            event.setdefault(name, value)
    return event


def _stamp(record: logging.LogRecord, service: str) -> None:
    """Set the fields that *record* does not have."""
    fields = {**_NONE, "otelServiceName": service}
    if span := ids():
        sampled = bool(int(span["trace_flags"], 16) & trace.TraceFlags.SAMPLED)
        fields.update(span)
        fields.update(
            otelTraceID=span["trace_id"], otelSpanID=span["span_id"], otelTraceSampled=sampled
        )
    present = record.__dict__
    for name, value in fields.items():
        present.setdefault(name, value)


def _join_structlog() -> list[Any] | None:
    """Put the processor before the last one, which renders; the chain it was put in.

    In place where that is possible, since loggers in use hold the same list.
    """
    structlog = sys.modules.get("structlog")
    if structlog is None:
        return None
    given = structlog.get_config()["processors"]
    if structlog_processor in given:
        return None
    chain: list[Any] = given if isinstance(given, list) else list(given)
    chain.insert(max(len(chain) - 1, 0), structlog_processor)
    if chain is not given:
        structlog.configure(processors=chain)
    return chain
