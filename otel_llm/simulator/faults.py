"""What can go wrong, one row each: what it does, how strong it can be, what it is expected to move.

A fault is a pure function from one `Setup` to another; several are applied one after the other.
Strength 0 changes nothing.

    setup = fault("slow_reader").apply(setup, 0.5, setup.part(0.2, 0.8))
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from otel_llm.simulator.conditions import FOREVER as NEVER_NS
from otel_llm.simulator.conditions import Conditions
from otel_llm.simulator.engine import EngineConfig
from otel_llm.simulator.load import ClientBehaviour, Habit
from otel_llm.simulator.misbehaviour import CUT, ERROR_EVENT, Busy, Failure, Misbehaviour
from otel_llm.simulator.network import Network, Trouble
from otel_llm.simulator.workload import ALWAYS, FOREVER, Lengths, RequestClass, Window, Workload


@dataclass(frozen=True, slots=True)
class Ailment:
    """One method of `Conditions` to call, and its arguments but for the time."""

    method: str
    window: Window = ALWAYS
    values: tuple[tuple[str, Any], ...] = ()

    def befall(self, conditions: Conditions, start_ns: int) -> None:
        """Write it down for a run that began at *start_ns*."""
        when = {"from_ns": start_ns + round(self.window.from_s * 1e9), "until_ns": NEVER_NS}
        if self.window.until_s != FOREVER:
            when["until_ns"] = start_ns + round(self.window.until_s * 1e9)
        getattr(conditions, self.method)(**dict(self.values), **when)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides a run: the same setup is the same run."""

    engine: EngineConfig
    workload: Workload
    requests: int = 60
    seed: int = 0
    ailments: tuple[Ailment, ...] = ()
    flushes_s: tuple[float, ...] = ()
    """When the prefix cache is emptied, seconds since the start of the run."""
    network: Network = field(default_factory=Network)
    client: ClientBehaviour = field(default_factory=ClientBehaviour)
    server: Misbehaviour = field(default_factory=Misbehaviour)

    @property
    def run_s(self) -> float:
        """How long the requests are expected to come in, seconds."""
        return self.requests / self.workload.rate_per_s

    def part(self, start: float, end: float) -> Window:
        """The window between two fractions of the run; one that ends with it stays open."""
        return Window(start * self.run_s, FOREVER if end >= 1 else end * self.run_s)

    def conditions(self, start_ns: int) -> Conditions:
        """What befalls the engine of a run that begins at *start_ns* of its clock."""
        conditions = Conditions()
        for each in self.ailments:
            each.befall(conditions, start_ns)
        for at_s in self.flushes_s:
            conditions.flush_cache(start_ns + round(at_s * 1e9))
        return conditions


def _nothing(setup: Setup) -> Setup:
    return setup


Change = Callable[[Setup, float, Window], Setup]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Args:
        name: What `--fault` calls it.
        does: What it does, in one sentence.
        strongest: What strength 1 means; less is proportionally less.
        moves: The phases, parts and outcomes of the affected requests that grow.
        change: From one setup to another.
        presumes: What must be switched on for it to be felt at all.
    """

    name: str
    does: str
    strongest: str
    moves: tuple[str, ...]
    change: Change
    presumes: Callable[[Setup], Setup] = _nothing

    def apply(self, setup: Setup, strength: float = 1.0, window: Window = ALWAYS) -> Setup:
        """*setup* with this fault; raises `ValueError` unless *strength* is between 0 and 1."""
        if not 0 <= strength <= 1:
            raise ValueError(f"the strength of {self.name} is {strength}; it must be 0 to 1")
        return self.change(self.presumes(setup), strength, window) if strength else setup


def fault(name: str) -> Fault:
    """The fault of that name; raises `ValueError` that names those there are."""
    found = FAULTS.get(name.replace("-", "_"))
    if found is None:
        near = difflib.get_close_matches(name, FAULTS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no fault is called {name!r}; {hint}There are: {', '.join(FAULTS)}")
    return found


def _ails(setup: Setup, window: Window, method: str, **values: Any) -> Setup:
    ailment = Ailment(method, window, tuple(values.items()))
    return replace(setup, ailments=(*setup.ailments, ailment))


def _troubled(setup: Setup, trouble: Trouble) -> Setup:
    return replace(setup, network=Network((*setup.network.troubles, trouble)))


def _busy(setup: Setup, busy: Busy) -> Setup:
    return replace(setup, server=replace(setup.server, busy=(*setup.server.busy, busy)))


def _fails(setup: Setup, window: Window, *kinds: str, share: float) -> Setup:
    failures = tuple(Failure(kind, share / len(kinds), window) for kind in kinds)
    server = replace(setup.server, failures=(*setup.server.failures, *failures))
    return replace(setup, server=server)


def _habit(setup: Setup, habit: Habit) -> Setup:
    return replace(setup, client=replace(setup.client, habits=(*setup.client.habits, habit)))


def _long_prompts(setup: Setup, strength: float, window: Window) -> Setup:
    prompt = Lengths(min(16_000, 0.8 * setup.workload.longest), 0.2)
    kind = RequestClass("long", prompt, Lengths(100, 0.3), 0.25 * strength, 0.5, window=window)
    return replace(setup, workload=setup.workload.mixed(kind))


def _small_kv_cache(setup: Setup, strength: float, window: Window) -> Setup:
    return _ails(setup, window, "take_blocks", share=1 - 0.02**strength)


def _slow_replica(setup: Setup, strength: float, window: Window) -> Setup:
    return _ails(setup, window, "slow", factor=1 + 3 * strength, cause="slow_replica")


def _noisy_neighbour(setup: Setup, strength: float, window: Window) -> Setup:
    cause = "noisy_neighbour"
    return _ails(setup, window, "disturb", extra_s=0.15 * strength, probability=0.2, cause=cause)


def _cpu_throttling(setup: Setup, strength: float, window: Window) -> Setup:
    stopped_s = 0.08 * strength
    setup = _busy(setup, Busy(0.1, stopped_s, window))
    return _ails(
        setup, window, "disturb", extra_s=stopped_s, probability=0.5, cause="cpu_throttling"
    )


def _slow_event_loop(setup: Setup, strength: float, window: Window) -> Setup:
    return _busy(setup, Busy(0.5, 0.4 * strength, window))


def _network_delay(setup: Setup, strength: float, window: Window) -> Setup:
    return _troubled(setup, Trouble(0.2 * strength, 0.02 * strength, window=window))


def _network_loss(setup: Setup, strength: float, window: Window) -> Setup:
    return _troubled(setup, Trouble(loss=0.1 * strength, window=window))


def _slow_reader(setup: Setup, strength: float, window: Window) -> Setup:
    return _habit(setup, Habit(pause_s=0.1 * strength, window=window))


def _cold_cache(setup: Setup, strength: float, window: Window) -> Setup:
    until_s = min(window.until_s, 1.5 * setup.run_s)
    count = max(1, int((until_s - window.from_s) * strength))
    flushes = tuple(window.from_s + number / strength for number in range(count))
    return replace(setup, flushes_s=(*setup.flushes_s, *flushes))


def _model_load(setup: Setup, strength: float, window: Window) -> Setup:
    until_s = min(window.until_s, window.from_s + 10 * strength)
    return _ails(setup, Window(window.from_s, until_s), "load")


def _spec_decode_drop(setup: Setup, strength: float, window: Window) -> Setup:
    return _ails(setup, window, "accept", rate=setup.engine.acceptance_rate * (1 - strength))


def _retries(setup: Setup, strength: float, window: Window) -> Setup:
    return _fails(setup, window, "503", share=0.6 * strength)


def _upstream_errors(setup: Setup, strength: float, window: Window) -> Setup:
    return _fails(setup, window, "500", "503", "429", CUT, ERROR_EVENT, share=strength)


def _aborts(setup: Setup, strength: float, window: Window) -> Setup:
    return _habit(setup, Habit(leaves=True, share=0.6 * strength, window=window))


def _speculating(setup: Setup) -> Setup:
    if setup.engine.speculative_tokens:
        return setup
    return replace(setup, engine=replace(setup.engine, speculative_tokens=3))


def _retrying(setup: Setup) -> Setup:
    return replace(
        setup, client=replace(setup.client, max_retries=max(3, setup.client.max_retries))
    )


FAULTS = {
    each.name: each
    for each in (
        Fault(
            "long_prompts",
            "Some of the requests have very long prompts, which take the batch's budget of tokens.",
            "a quarter of the requests have some 16,000 tokens",
            ("queue", "prefill"),
            _long_prompts,
        ),
        Fault(
            "small_kv_cache",
            "Most blocks of the KV cache are gone, so requests wait for room or are preempted.",
            "98 % of the blocks are gone; half of that strength leaves 14 %",
            ("queue", "preempted"),
            _small_kv_cache,
        ),
        Fault(
            "slow_replica",
            "Every step of the engine takes longer, as on a throttled or shared accelerator.",
            "steps take four times as long",
            ("prefill", "decode"),
            _slow_replica,
        ),
        Fault(
            "noisy_neighbour",
            "Somebody else uses the accelerator now and then, and a step has to wait.",
            "every fifth step takes 150 ms more",
            ("prefill", "decode"),
            _noisy_neighbour,
        ),
        Fault(
            "cpu_throttling",
            "The container may not compute for a part of every 100 ms: neither engine nor server.",
            "80 ms of each 100 ms are lost",
            ("prefill", "decode", "first_token"),
            _cpu_throttling,
        ),
        Fault(
            "slow_event_loop",
            "The server's event loop is busy with something else, so bytes wait to come and go.",
            "it is busy for 400 ms of each 500 ms",
            ("preprocess", "first_token"),
            _slow_event_loop,
        ),
        Fault(
            "network_delay",
            "Every byte is delayed on its way, with some jitter.",
            "200 ms each way, and 20 ms of jitter",
            ("network",),
            _network_delay,
        ),
        Fault(
            "network_loss",
            "Segments are lost and sent again after a time-out, while all that follows waits.",
            "every tenth segment is lost",
            ("network",),
            _network_loss,
        ),
        Fault(
            "slow_reader",
            "The application is slow to read its stream; nothing else is slow.",
            "100 ms between two reads",
            ("consumer_stall",),
            _slow_reader,
        ),
        Fault(
            "cold_cache",
            "The prefix cache is empty after each deploy, so shared prompts are computed anew.",
            "a deploy each second",
            ("prefill",),
            _cold_cache,
        ),
        Fault(
            "model_load",
            "The model is not loaded when the requests come, and they wait for it.",
            "it takes 10 s to load",
            ("load",),
            _model_load,
        ),
        Fault(
            "spec_decode_drop",
            "Speculative decoding guesses wrong: drafted tokens are thrown away.",
            "no drafted token is accepted",
            ("decode",),
            _spec_decode_drop,
            _speculating,
        ),
        Fault(
            "retries",
            "The server is unavailable to some attempts, and the client library tries again.",
            "six of ten attempts are answered with 503",
            ("retry",),
            _retries,
            _retrying,
        ),
        Fault(
            "upstream_errors",
            "Requests are answered with 500, 503 or 429, or their stream breaks or tells an error.",
            "all of them, each way alike",
            ("error", "rejected"),
            _upstream_errors,
        ),
        Fault(
            "aborts",
            "Readers leave their streams, and callers give up waiting.",
            "six of ten requests",
            ("abandoned", "cancelled"),
            _aborts,
        ),
    )
}
"""Every fault by its name."""
