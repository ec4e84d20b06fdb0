"""An inference engine without a model: it batches, caches, preempts and fails like a real one.

`engine` schedules as vLLM V1 does (continuous batching, chunked prefill, blocks of KV cache, prefix
cache, preemption) and charges each step what `hardware` says it costs; `conditions` makes it worse
on demand, and `truth` keeps what happened to every request, and why, out of the telemetry's sight.
These parts are pure: they read no clock, draw from one seeded source and import the standard
library only, so that a run can be repeated and an hour of traffic takes seconds. Around them,
`workload` makes the traffic, `network` and `faults` disturb it, and `serving` speaks the wire
formats of real servers.
"""

from otel_llm.simulator.conditions import Conditions
from otel_llm.simulator.engine import Engine, EngineConfig, EngineRequest
from otel_llm.simulator.hardware import HARDWARE, MODELS, CostModel
from otel_llm.simulator.truth import Cause, RequestTruth

__all__ = [
    "HARDWARE",
    "MODELS",
    "Cause",
    "Conditions",
    "CostModel",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "RequestTruth",
]
