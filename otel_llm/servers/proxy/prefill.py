"""How long prefill takes, learned from requests that had the engine to themselves. Pure.

Engines that say nothing of a stream (TGI; any that was not asked to) show one time: from sending to
the first token, which is queue and prefill. A request that met no other is all prefill; of one
that met others, as much is prefill as it was for lone ones of its size, and the rest is queue.
Both are estimates: other clients of the engine are not seen, and a cached prefix is not known.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

REMEMBERED = 9
"""Lone requests of one size that are looked back on."""
MOST_SIZES = 512
_NEAR = 2


class LonePrefills:
    """What lone requests took, by model and size; sizes are powers of two of the body's bytes."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int], deque[int]] = OrderedDict()

    def learn(self, model: str, size: int, took_ns: int) -> None:
        """A request that met no other took so long to its first token, nanoseconds."""
        key = model, size.bit_length()
        self._seen.setdefault(key, deque(maxlen=REMEMBERED)).append(took_ns)
        self._seen.move_to_end(key)
        if len(self._seen) > MOST_SIZES:
            self._seen.popitem(last=False)

    def estimate(self, model: str, size: int) -> int | None:
        """How long prefill takes for such a request, nanoseconds; None if nothing like it came.

        A neighbouring size stands in: a smaller one is a lower bound, so it comes last.
        """
        bits = size.bit_length()
        for near in (0, *range(1, _NEAR + 1), *range(-1, -_NEAR - 1, -1)):
            if seen := self._seen.get((model, bits + near)):
                return round(median(seen))
        return None
