"""KV-cache blocks: who holds them, which prefixes they keep, which one is given away next.

A block that nobody holds keeps its contents until it is needed for something else: first go those
that keep nothing to be found, then the one that was freed first. A full block is found again by
the hash of its tokens and of all blocks before it (vLLM's automatic prefix caching).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT_HASH = 0x0E11
"""What the first block of every sequence follows."""


def block_hash(before: int, tokens: Iterable[int]) -> int:
    """The hash of a full block that follows the one with hash *before*."""
    return hash((before, tuple(tokens)))


class BlockPool:
    """A fixed number of blocks, shared by sequences and counted by holder."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.limit = num_blocks
        """How many may be in use; fewer than there are while some are taken away."""
        self.capacity = num_blocks
        """How many `usage` is a share of; less than `limit` while a long request gets more."""
        self._holders = [0] * num_blocks
        self._hashes: list[int | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._found: dict[int, list[int]] = {}
        self._lost: set[int] = set()

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Used blocks of those that there are, 0 to 1."""
        return min(1.0, self.used / self.capacity) if self.capacity else 1.0

    def lookup(self, hashes: Sequence[int]) -> list[int]:
        """The blocks that keep the longest known prefix of *hashes*."""
        found = []
        for each in hashes:
            blocks = self._found.get(each)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def lost(self, hashes: Sequence[int]) -> int:
        """How many of *hashes* were in the cache when it was flushed, and not again since."""
        return sum(1 for each in hashes if each in self._lost) if self._lost else 0

    def room_for(self, new: int, shared: Iterable[int] = ()) -> bool:
        """Whether *new* blocks can be taken once the *shared* ones are held."""
        woken = sum(1 for block in shared if not self._holders[block])
        return new + woken <= self.limit - self.used

    def share(self, blocks: Iterable[int]) -> None:
        """One more sequence holds these."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Blocks for one sequence to write into. Raises MemoryError if there is no room."""
        if not self.room_for(count):
            raise MemoryError(f"{count} blocks wanted, {self.limit - self.used} left")
        return [self._evict() for _ in range(count)]

    def _evict(self) -> int:
        block, _ = self._free.popitem(last=False)
        self.forget(block)
        self._holders[block] = 1
        return block

    def publish(self, block: int, content: int) -> None:
        """The block is full: it can be found by the hash of its contents."""
        self._lost.discard(content)
        if self._hashes[block] is None:
            self._hashes[block] = content
            self._found.setdefault(content, []).append(block)

    def forget(self, block: int) -> None:
        """Whatever the block keeps is not to be found in it any more."""
        content = self._hashes[block]
        if content is not None:
            self._hashes[block] = None
            self._found[content].remove(block)
            if not self._found[content]:
                del self._found[content]

    def free(self, blocks: Sequence[int]) -> None:
        """A sequence lets go of its blocks; their ends are given away before their beginnings.

        Raises ValueError for a block that nobody holds.
        """
        empty = []
        for block in reversed(blocks):
            if not self._holders[block]:
                raise ValueError(f"block {block} is free already")
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._hashes[block] is None:
                    empty.append(block)
        for block in reversed(empty):
            self._free.move_to_end(block, last=False)

    def flush(self) -> None:
        """Forget every prefix; blocks in use stay in use."""
        self._lost.update(self._found)
        self._found.clear()
        self._hashes = [None] * self.num_blocks
