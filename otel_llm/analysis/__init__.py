"""Where did the p99 go: spans in, figures, a report and a plain sentence out. Pure but `render`."""

from otel_llm.analysis.breakdown import Analysis, Figures, PhaseFigures, analyse
from otel_llm.analysis.quantiles import Distribution, describe, quantile
from otel_llm.analysis.report import as_json, as_object
from otel_llm.analysis.requests import Found, Request, requests_of, requests_of_trace
from otel_llm.analysis.sentence import explain, sentence
from otel_llm.analysis.spans import SpanRecord, from_sdk

__all__ = [
    "Analysis",
    "Distribution",
    "Figures",
    "Found",
    "PhaseFigures",
    "Request",
    "SpanRecord",
    "analyse",
    "as_json",
    "as_object",
    "describe",
    "explain",
    "from_sdk",
    "quantile",
    "requests_of",
    "requests_of_trace",
    "sentence",
]
