"""The pure core: evidence of a request in, a frozen timeline out. No OpenTelemetry in here."""

from otel_llm.timeline.evidence import (
    Ending,
    EngineClock,
    EngineStamps,
    Evidence,
    Sequence,
    Stamp,
    Tokens,
)
from otel_llm.timeline.gaps import GapSummary, OutputTimes
from otel_llm.timeline.layout import PhaseTime
from otel_llm.timeline.marks import Mark, Outcome, Part, Phase, Side, Source
from otel_llm.timeline.recorder import EngineCall, RequestRecorder
from otel_llm.timeline.resolve import Timeline, resolve

__all__ = [
    "Ending",
    "EngineCall",
    "EngineClock",
    "EngineStamps",
    "Evidence",
    "GapSummary",
    "Mark",
    "Outcome",
    "OutputTimes",
    "Part",
    "Phase",
    "PhaseTime",
    "RequestRecorder",
    "Sequence",
    "Side",
    "Source",
    "Stamp",
    "Timeline",
    "Tokens",
    "resolve",
]
