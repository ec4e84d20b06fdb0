"""Blocks: held, shared, found by prefix, evicted."""

from __future__ import annotations

import pytest

from otel_llm.simulator.blocks import ROOT_HASH, BlockPool, block_hash


def held(pool: BlockPool, *contents: int) -> list[int]:
    """Blocks taken and filled with these."""
    blocks = pool.take(len(contents))
    for block, content in zip(blocks, contents, strict=True):
        pool.publish(block, content)
    return blocks


def test_a_block_is_found_by_what_it_keeps_after_it_was_freed() -> None:
    """Freed blocks keep their contents."""
    pool = BlockPool(4)
    blocks = held(pool, 11, 12)
    pool.free(blocks)
    assert blocks == pool.lookup([11, 12, 13])
    assert pool.used == 0


def test_a_prefix_ends_at_the_first_unknown_block() -> None:
    """A later block alone is of no use."""
    pool = BlockPool(4)
    held(pool, 11, 13)
    assert len(pool.lookup([11, 12, 13])) == 1


def test_the_block_freed_first_is_given_away_first() -> None:
    """Least recently used goes first, and its contents are forgotten."""
    pool = BlockPool(2)
    old, new = held(pool, 1), held(pool, 2)
    pool.free(old)
    pool.free(new)
    assert old == pool.take(1)
    assert pool.lookup([1]) == []
    assert new == pool.lookup([2])


def test_a_block_that_keeps_nothing_is_given_away_first() -> None:
    """However late it was freed: nobody will look for it."""
    pool = BlockPool(3)
    full, empty = held(pool, 1), pool.take(2)
    pool.free(full)
    pool.free(empty)
    assert pool.take(3) == [*reversed(empty), *full]


def test_the_end_of_a_sequence_is_given_away_before_its_beginning() -> None:
    """A beginning is more likely to be shared."""
    pool = BlockPool(3)
    blocks = held(pool, 1, 2, 3)
    pool.free(blocks)
    assert blocks[::-1] == pool.take(3)


def test_using_a_cached_block_keeps_it_from_being_given_away() -> None:
    """A shared block is not free, and freeing it makes it the last to go."""
    pool = BlockPool(2)
    first, second = held(pool, 1), held(pool, 2)
    pool.free(first)
    pool.free(second)
    pool.share(first)
    pool.free(first)
    assert second == pool.take(1)


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    """Holders are counted."""
    pool = BlockPool(2)
    blocks = held(pool, 1)
    pool.share(blocks)
    pool.free(blocks)
    assert pool.used == 1
    pool.free(blocks)
    assert pool.used == 0


def test_a_block_cannot_be_freed_twice() -> None:
    """Nobody lets go of what nobody holds."""
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.free(blocks)
    with pytest.raises(ValueError, match="free already"):
        pool.free(blocks)


def test_no_more_blocks_are_taken_than_there_are() -> None:
    """Taking too many takes none."""
    pool = BlockPool(2)
    with pytest.raises(MemoryError):
        pool.take(3)
    assert pool.used == 0


def test_sleeping_shared_blocks_need_room_too() -> None:
    """A cached block that nobody holds counts among the free ones only until it is used."""
    pool = BlockPool(2)
    blocks = held(pool, 1)
    pool.free(blocks)
    assert pool.room_for(2)
    assert not pool.room_for(2, shared=blocks)


def test_a_limit_leaves_fewer_blocks() -> None:
    """Blocks taken away cannot be used, and the share in use is of those left."""
    pool = BlockPool(10)
    pool.take(3)
    pool.limit = pool.capacity = 4
    assert pool.usage == 0.75
    assert not pool.room_for(2)


def test_equal_contents_are_found_until_the_last_of_them_is_gone() -> None:
    """Two sequences may have computed the same; the first of their blocks is found first."""
    pool = BlockPool(4)
    first, second = held(pool, 1), held(pool, 1)
    assert pool.lookup([1]) == first
    pool.forget(first[0])
    assert pool.lookup([1]) == second
    pool.forget(second[0])
    assert pool.lookup([1]) == []


def test_a_flush_forgets_what_is_kept_and_not_who_holds_it() -> None:
    """Blocks in use stay in use; what was lost is known until it is computed again."""
    pool = BlockPool(4)
    held(pool, 1, 2)
    pool.flush()
    assert (pool.lookup([1, 2]), pool.lost([1, 2]), pool.used) == ([], 2, 2)
    held(pool, 1)
    assert pool.lost([1, 2]) == 1


def test_a_hash_depends_on_all_tokens_before() -> None:
    """The same block after another beginning is another."""
    first, other = block_hash(ROOT_HASH, [1, 2]), block_hash(ROOT_HASH, [3, 4])
    assert block_hash(first, [5, 6]) != block_hash(other, [5, 6])
    assert block_hash(first, range(5, 7)) == block_hash(first, [5, 6])
