"""What a demo runs: engine, load and faults, the same in the demo and in its server's process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from otel_llm.errors import ConfigurationError
from otel_llm.simulator.faults import FAULTS, Setup, fault
from otel_llm.simulator.hardware import HARDWARE, MODELS
from otel_llm.simulator.interface import EngineConfig
from otel_llm.simulator.workload import Arrival, Lengths, RequestClass, Workload

SIMULATED, VLLM, OLLAMA = "simulated", "vllm", "ollama"
ENGINES = (SIMULATED, VLLM, OLLAMA)
DIALECTS = {"vllm": "vLLM", "tgi": "TGI", "ollama": "Ollama"}
"""What a simulated engine can speak, and whose language that is."""
HARDWARE_NAME, MODEL_NAME = "A100-80G", "Llama-3.1-8B"
ARRIVALS_S = 20.0
"""How long requests come in by default, seconds."""
MOST_REQUESTS = 10_000
MOST_RATE = 200.0
STRENGTHS = {
    "long_prompts": 0.2,
    "slow_replica": 0.4,
    "slow_event_loop": 0.7,
    "slow_reader": 0.5,
    "model_load": 0.5,
    "retries": 0.7,
    "upstream_errors": 0.3,
    "aborts": 0.5,
}
"""How strong a fault is when nobody says so, where that is not 1: strong enough to be seen, and
the run is still over within a minute."""

KV_BLOCKS = 6000
LONGEST = 32_768
MIX = (
    RequestClass("chat", Lengths(150, 0.6, 1500), Lengths(50, 0.5, 140), weight=5),
    RequestClass("code", Lengths(700, 0.6, 4000), Lengths(90, 0.4, 200), weight=1.5),
    RequestClass(
        "rag", Lengths(500, 0.5, 3000), Lengths(70, 0.4, 160), 1.5, prefix_tokens=1024, prefixes=8
    ),
    RequestClass(
        "agent", Lengths(300, 0.6, 3000), Lengths(40, 0.5, 120), 1.4, 0.5, prefix_tokens=3072
    ),
    RequestClass("document", Lengths(12_000, 0.4, 30_000), Lengths(80, 0.4, 160), 0.5, 0.5),
)
"""Answers are short, so that what they wait for is seen; a few prompts are whole documents."""
_SMALL = (
    RequestClass("chat", Lengths(40, 0.5, 200), Lengths(30, 0.4, 80), weight=4),
    RequestClass("rag", Lengths(100, 0.4, 300), Lengths(30, 0.4, 80), prefix_tokens=200),
    RequestClass("long", Lengths(1200, 0.3, 2500), Lengths(30, 0.4, 80), 0.5, streaming=0.5),
)
"""For a small engine on a CPU."""
_WORKLOADS = {
    SIMULATED: Workload(4.0, MIX, longest=LONGEST),
    VLLM: Workload(4.0, _SMALL, longest=4000),
    OLLAMA: Workload(0.6, _SMALL[:2]),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for.

    Args:
        engine: One of `ENGINES`.
        dialect: What a simulated engine speaks, one of `DIALECTS`.
        requests: How many; None is as many as come in 20 s.
        seed: Same seed, same load.
        rate: Requests per second; None is what suits the engine.
        duration_s: No request comes later than that.
        faults: Names of faults, each perhaps with its strength: `slow_reader=0.2`.
        model: What is asked for; a real engine names its own.
    """

    engine: str = SIMULATED
    dialect: str = "vllm"
    requests: int | None = None
    seed: int = 0
    rate: float | None = None
    duration_s: float | None = None
    faults: tuple[str, ...] = ()
    model: str = MODEL_NAME

    def __post_init__(self) -> None:
        if self.requests is not None and not 1 <= self.requests <= MOST_REQUESTS:
            raise ConfigurationError(f"--requests must be between 1 and {MOST_REQUESTS}")
        if self.rate is not None and not 0 < self.rate <= MOST_RATE:
            raise ConfigurationError(f"--rate must be above 0 and at most {MOST_RATE:g}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ConfigurationError("--duration must be above 0 seconds")

    def workload(self) -> Workload:
        """The load before any fault."""
        found = replace(_WORKLOADS[self.engine], model=self.model)
        return found if self.rate is None else replace(found, rate_per_s=self.rate)

    def setup(self) -> Setup:
        """Everything that decides the run.

        Raises:
            ConfigurationError: A fault does not exist, or a real engine cannot have it.
        """
        engine = EngineConfig.of(
            HARDWARE[HARDWARE_NAME],
            MODELS[MODEL_NAME],
            num_blocks=KV_BLOCKS,
            max_model_len=LONGEST,
            speculative_tokens=3,
        )
        workload = self.workload()
        requests = self._count(workload)
        plain = found = Setup(engine, workload, requests=requests, seed=self.seed)
        for name, strength in self.strengths():
            found = fault(name).apply(found, strength)
            inside = (found.engine, found.ailments, found.flushes_s, found.server)
            outside = (plain.engine, plain.ailments, plain.flushes_s, plain.server)
            if self.engine != SIMULATED and inside != outside:
                raise ConfigurationError(
                    f"--fault {name} is a fault of the engine, and only a simulated one can be "
                    "made to have it; leave --engine away"
                )
            if found.client.max_retries and self.dialect != "vllm":
                raise ConfigurationError(
                    f"--fault {name} needs a client that tries again; leave --dialect away"
                )
        return found

    def arrivals(self) -> list[Arrival]:
        """Who asks when, and for how much."""
        setup = self.setup()
        return setup.workload.arrivals(setup.seed, setup.requests)

    def strengths(self) -> Iterator[tuple[str, float]]:
        """Each fault's name and strength; raises `ConfigurationError` for an unknown one."""
        for each in self.faults:
            name, _, given = each.partition("=")
            name = name.strip().replace("-", "_")
            if name not in FAULTS:
                raise ConfigurationError(f"--fault {name!r} is unknown; there are:\n{listed()}")
            try:
                strength = float(given) if given else STRENGTHS.get(name, 1.0)
            except ValueError:
                strength = -1.0
            if not 0 <= strength <= 1:
                raise ConfigurationError(f"--fault {each}: the strength must be between 0 and 1")
            yield name, strength

    def _count(self, workload: Workload) -> int:
        most = self.requests
        if self.duration_s is None:
            return most or max(1, round(ARRIVALS_S * workload.rate_per_s))
        arrivals = workload.arrivals(self.seed, most or MOST_REQUESTS)
        return max(1, sum(1 for each in arrivals if each.at_s <= self.duration_s))

    def to_json(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """What `to_json` has written."""
        given = json.loads(text)
        return cls(**given | {"faults": tuple(given["faults"])})


def listed() -> str:
    """Every fault and what it does, one line each."""
    width = max(map(len, FAULTS))
    return "\n".join(f"  {each.name:<{width}}  {each.does}" for each in FAULTS.values())
