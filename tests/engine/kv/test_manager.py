"""Blocks found, reserved, named, shared, copied and evicted."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.engine.kv.manager import BlockTable, KvManager
from tests.engine.support import prompt


def manager(blocks: int = 8, **fields: bool) -> KvManager:
    return KvManager(blocks, max_blocks=8, **fields)


def computed(kv: KvManager, tokens: np.ndarray, salt: bytes = b"") -> BlockTable:
    """A table over all of `tokens`, as if a forward had just computed what was not cached."""
    table = kv.open(tokens, salt)
    assert kv.reserve(table, kv.matched(table), len(tokens))
    kv.commit(table, tokens, len(tokens))
    return table


@pytest.mark.parametrize(("length", "hit"), [(63, 0), (64, 0), (65, 64), (128, 64), (129, 128), (200, 128)])
def test_a_match_is_whole_blocks_and_never_the_whole_prompt(length: int, hit: int) -> None:
    kv = manager()
    computed(kv, prompt(150))
    assert kv.match(prompt(length), b"") == hit


def test_blocks_are_found_while_the_first_sequence_still_runs() -> None:
    kv = manager()
    first = computed(kv, prompt(130))
    second = kv.open(prompt(140), b"")
    assert second.blocks == first.blocks[:2]
    assert [kv.pool.refs[block] for block in second.blocks] == [2, 2]
    kv.check([first, second])


def test_salts_keep_equal_prompts_apart() -> None:
    kv = manager()
    computed(kv, prompt(130), b"a")
    assert kv.match(prompt(130), b"b") == 0
    assert kv.match(prompt(130), b"a") == 128


def test_the_row_mirrors_the_blocks() -> None:
    kv = manager()
    table = computed(kv, prompt(200))
    assert table.row[: len(table.blocks)].tolist() == table.blocks
    assert table.row.dtype == np.int32


def test_reserving_is_all_or_nothing() -> None:
    kv = manager(4)
    table = kv.open(prompt(10), b"")
    assert not kv.reserve(table, 0, 5 * 64)
    assert table.blocks == []
    assert kv.reserve(table, 0, 4 * 64)
    assert kv.available == 0


def test_released_blocks_stay_as_cache_and_own_ones_are_freed() -> None:
    kv = manager()
    kv.release(computed(kv, prompt(130)))
    assert (kv.pool.free, len(kv.tree.idle), kv.available) == (6, 2, 8)
    assert kv.match(prompt(130), b"") == 128


def test_the_least_recently_used_leaf_goes_first() -> None:
    kv = manager(6)
    kv.release(computed(kv, prompt(129, seed=1)))  # two named blocks and a part
    kv.release(computed(kv, prompt(129, seed=2)))
    kv.release(computed(kv, prompt(129, seed=1)))  # used again: now the newer
    table = kv.open(prompt(10, seed=3), b"")
    assert kv.reserve(table, 0, 3 * 64)
    assert kv.match(prompt(129, seed=2), b"") == 64
    assert kv.match(prompt(129, seed=1), b"") == 128
    evicted = kv.take_evictions()
    assert [eviction.reason for eviction in evicted] == ["lru"]
    kv.check([table])


def test_referenced_blocks_are_never_evicted() -> None:
    kv = manager(4)
    first = computed(kv, prompt(129, seed=1))
    kv.release(computed(kv, prompt(64, seed=2)))
    table = kv.open(prompt(10, seed=3), b"")
    assert not kv.reserve(table, 0, 128)
    assert kv.reserve(table, 0, 64)
    assert kv.match(prompt(129, seed=1), b"") == 128
    kv.check([first, table])


def test_equal_blocks_computed_twice_become_one() -> None:
    kv = manager()
    first, second = kv.open(prompt(100), b""), kv.open(prompt(100), b"")
    for table in (first, second):
        assert kv.reserve(table, 0, 100)
    kv.commit(first, prompt(100), 100)
    kv.commit(second, prompt(100), 100)
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    assert kv.pool.free == 5
    kv.check([first, second])


def test_extending_takes_what_others_committed_meanwhile() -> None:
    kv = manager()
    second = kv.open(prompt(129), b"")
    assert kv.reserve(second, 0, 129)
    first = computed(kv, prompt(129))
    assert kv.extend(second, prompt(129)) == 128
    assert second.blocks[:2] == first.blocks[:2]
    assert kv.pool.free == 4
    kv.check([first, second])


def test_a_fork_copies_its_part_block_when_it_first_writes_and_the_last_holder_need_not() -> None:
    kv = manager()
    first = computed(kv, prompt(100))
    second, third = kv.fork(first, 100), kv.fork(first, 100)
    part = first.blocks[1]
    assert kv.pool.refs[part] == 3
    for table in (first, second, third):
        assert kv.reserve(table, 100, 101)
    copies = kv.take_copies()
    assert [copy.src for copy in copies] == [part, part]
    assert [copy.dst for copy in copies] == [first.blocks[1], second.blocks[1]]
    assert third.blocks[1] == part
    assert kv.take_copies() == ()
    kv.check([first, second, third])


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    kv = manager()
    first = computed(kv, prompt(128))
    second = kv.fork(first, 128)
    for table in (first, second):
        assert kv.reserve(table, 128, 129)
    assert kv.take_copies() == ()
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    kv.check([first, second])


def test_forgetting_removes_a_sequences_own_cache_only() -> None:
    kv = manager()
    good = computed(kv, prompt(65))
    bad = computed(kv, prompt(200))
    kv.release(bad, forget=True)
    assert kv.match(prompt(200), b"") == 64
    kv.release(good, forget=True)
    assert kv.match(prompt(200), b"") == 0
    assert kv.pool.free == 8
    kv.check([])


def test_without_a_prefix_cache_nothing_is_named() -> None:
    kv = manager(prefix_cache=False)
    kv.release(computed(kv, prompt(200)))
    assert kv.match(prompt(200), b"") == 0
    assert kv.pool.free == 8


def test_check_finds_a_leak_and_a_wrong_count() -> None:
    kv = manager()
    table = computed(kv, prompt(100))
    with pytest.raises(AssertionError, match="live tables"):
        kv.check([])
    kv.pool.refs[table.blocks[1]] = 0
    with pytest.raises(AssertionError, match="leaked"):
        kv.check()


def test_trimming_gives_back_what_lies_behind() -> None:
    kv = manager()
    table = computed(kv, prompt(130))
    assert kv.reserve(table, 130, 300)
    changes = table.changes
    kv.trim(table, 131)
    assert (len(table.blocks), kv.pool.free) == (3, 5)
    assert table.changes > changes
    kv.trim(table, 131)
    assert len(table.blocks) == 3
    kv.check([table])
    with pytest.raises(AssertionError, match="named"):
        kv.trim(table, 64)
