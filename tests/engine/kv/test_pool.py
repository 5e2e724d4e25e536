"""Reference counts and the free list."""

from __future__ import annotations

import pytest

from tailrace.engine.kv.pool import BlockPool


def test_a_block_is_free_again_after_its_last_reference() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    assert not pool.drop(block)
    assert pool.drop(block)
    assert pool.free == 1
    pool.put_back(block)
    assert pool.free_blocks() == {0, 1}


def test_all_blocks_are_handed_out_once() -> None:
    pool = BlockPool(5)
    assert {pool.take() for _ in range(5)} == set(range(5))
    assert pool.free == 0


def test_dropping_too_often_and_freeing_a_used_block_are_refused() -> None:
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(AssertionError, match="still referenced"):
        pool.put_back(block)
    pool.drop(block)
    with pytest.raises(AssertionError, match="more often"):
        pool.drop(block)


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)
