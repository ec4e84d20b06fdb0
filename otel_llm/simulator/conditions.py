"""What goes wrong with an engine, and when: faults write it down, the engine looks it up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from otel_llm.simulator.truth import Hold

FOREVER = 1 << 62
"""An instant that no run reaches, in nanoseconds."""


@dataclass(slots=True)
class Spell:
    """A time in which something holds. Set `until_ns` to end it early."""

    from_ns: int
    until_ns: int
    amount: float
    cause: str = ""
    probability: float = 1.0

    def covers(self, now_ns: int) -> bool:
        """Whether it holds at that instant; no longer at `until_ns`."""
        return self.from_ns <= now_ns < self.until_ns


class StepTrouble(NamedTuple):
    """What befalls one step: its cost times `factor`, plus `extra_s` seconds."""

    factor: float
    extra_s: float
    troubles: tuple[Hold, ...]


NO_TROUBLE = StepTrouble(1.0, 0.0, ())


class Conditions:
    """Everything faults do to one engine, in nanoseconds of the engine's own clock.

    The methods that make it worse give back the `Spell`, whose end can be moved. Several of a kind
    may overlap: factors multiply, extra times and blocks add up, the last acceptance rate and the
    last end of a load count.
    """

    def __init__(self) -> None:
        self._slow: list[Spell] = []
        self._extra: list[Spell] = []
        self._taken: list[Spell] = []
        self._acceptance: list[Spell] = []
        self._loads: list[Spell] = []
        self._flushes: list[int] = []

    def slow(
        self, factor: float, from_ns: int = 0, until_ns: int = FOREVER, cause: str = "slow_step"
    ) -> Spell:
        """Every step takes *factor* times as long. Raises ValueError unless it is positive."""
        if not factor > 0:
            raise ValueError(f"a step cannot take {factor} times as long; give a positive factor")
        return _kept(self._slow, Spell(from_ns, until_ns, factor, cause))

    def disturb(
        self,
        extra_s: float,
        probability: float,
        from_ns: int = 0,
        until_ns: int = FOREVER,
        cause: str = "noisy_neighbour",
    ) -> Spell:
        """A step takes *extra_s* seconds more, with that probability each.

        Raises ValueError for negative seconds and for what is no probability.
        """
        if extra_s < 0 or not 0 <= probability <= 1:
            raise ValueError(f"no such disturbance: {extra_s} s with probability {probability}")
        return _kept(self._extra, Spell(from_ns, until_ns, extra_s, cause, probability))

    def take_blocks(self, share: float, from_ns: int = 0, until_ns: int = FOREVER) -> Spell:
        """That share of the KV cache (0 to 1) cannot be used; what is in use stays until freed.

        The engine always keeps what the longest request in it needs, so that all of them end.
        Raises ValueError for what is no share.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"{share} is no share of the blocks; give 0 to 1")
        return _kept(self._taken, Spell(from_ns, until_ns, share))

    def accept(self, rate: float, from_ns: int = 0, until_ns: int = FOREVER) -> Spell:
        """A drafted token is accepted with that probability. Raises ValueError for no such."""
        if not 0 <= rate <= 1:
            raise ValueError(f"{rate} is no acceptance rate; give 0 to 1")
        return _kept(self._acceptance, Spell(from_ns, until_ns, rate))

    def load(self, from_ns: int, until_ns: int) -> Spell:
        """A model is being loaded: no step begins before it is over."""
        return _kept(self._loads, Spell(from_ns, until_ns, 0.0))

    def flush_cache(self, at_ns: int) -> None:
        """The prefix cache is empty at that instant, as after a deploy."""
        self._flushes.append(at_ns)

    def of_step(self, now_ns: int, random: Random) -> StepTrouble:
        """What befalls a step that begins now."""
        if not self._slow and not self._extra:
            return NO_TROUBLE
        factor, extra_s, troubles = 1.0, 0.0, []
        for spell in _covering(self._slow, now_ns):
            factor *= spell.amount
            troubles.append(Hold(spell.cause, f"{spell.amount:g} times as long"))
        for spell in _covering(self._extra, now_ns):
            if random.random() < spell.probability:
                extra_s += spell.amount
                troubles.append(Hold(spell.cause, f"{spell.amount:g} s more"))
        return StepTrouble(factor, extra_s, tuple(troubles))

    def blocks_taken(self, now_ns: int, num_blocks: int) -> int:
        """How many of *num_blocks* cannot be used now."""
        if not self._taken:
            return 0
        share = sum(spell.amount for spell in _covering(self._taken, now_ns))
        return min(num_blocks, round(share * num_blocks))

    def acceptance(self, now_ns: int, default: float) -> float:
        """The probability that a drafted token is accepted now."""
        rate = default
        for spell in _covering(self._acceptance, now_ns):
            rate = spell.amount
        return rate

    def loading_until(self, now_ns: int) -> int | None:
        """When the model that is being loaded now will be there; None if none is."""
        return max((spell.until_ns for spell in _covering(self._loads, now_ns)), default=None)

    def flushes(self, now_ns: int) -> int:
        """How many times the prefix cache has been emptied by now."""
        return sum(1 for at_ns in self._flushes if at_ns <= now_ns)


def _covering(spells: list[Spell], now_ns: int) -> Iterator[Spell]:
    return (spell for spell in spells if spell.covers(now_ns))


def _kept(spells: list[Spell], spell: Spell) -> Spell:
    spells.append(spell)
    return spell
