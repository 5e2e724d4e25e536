"""Random programs of open/reserve/commit/extend/release/fork on a small cache, against a shadow model.

The shadow knows which tokens stand in which block: a table's blocks must hold its own tokens at every position it
has computed, whatever was evicted, shared or copied in between.
"""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.engine.kv.manager import BlockTable, KvManager

SIZE, BLOCKS, MOST = 4, 10, 8


class Live:
    """A sequence as the shadow sees it."""

    def __init__(self, tokens: list[int], salt: bytes, table: BlockTable, computed: int) -> None:
        self.tokens = tokens
        self.salt = salt
        self.table = table
        self.computed = computed

    def array(self) -> np.ndarray:
        return np.array(self.tokens, np.int32)


class KvProgram(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = KvManager(BLOCKS, max_blocks=MOST, block_tokens=SIZE)
        self.memory: list[list[tuple[bytes, int] | None]] = [[None] * SIZE for _ in range(BLOCKS)]
        self.live: list[Live] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=SIZE * MOST - 6), salt=st.sampled_from([b"", b"x"]))
    def open(self, tokens: list[int], salt: bytes) -> None:
        array = np.array(tokens, np.int32)
        estimate = self.kv.match(array, salt)
        table = self.kv.open(array, salt)
        assert self.kv.matched(table) == estimate < len(tokens)
        self.live.append(Live(tokens, salt, table, estimate))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(1, 9))
    def compute(self, data: st.DataObject, size: int) -> None:
        """Reserve, write and commit the next tokens, making some up at the end."""
        one = data.draw(st.sampled_from(self.live))
        stop = min(one.computed + size, SIZE * MOST)
        while len(one.tokens) < stop:
            one.tokens.append(data.draw(st.integers(0, 1)))
        before = self.kv.available
        held = list(one.table.blocks)
        if not self.kv.reserve(one.table, one.computed, stop):
            assert one.table.blocks == held
            assert before < self.kv.blocks_for(stop) - len(held) + 1
            return
        for copy in self.kv.take_copies():
            self.memory[copy.dst] = list(self.memory[copy.src])
        for position in range(one.computed, stop):
            block = one.table.blocks[position // SIZE]
            assert self.kv.pool.refs[block] == 1, "only an unshared block is written"
            self.memory[block][position % SIZE] = (one.salt, one.tokens[position])
        one.computed = stop
        self.kv.commit(one.table, one.array(), stop)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        if one.computed == self.kv.matched(one.table) and one.computed < len(one.tokens):
            one.computed = self.kv.extend(one.table, one.array())
            assert one.computed < len(one.tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        if len(self.live) < 6:
            self.live.append(Live(list(one.tokens), one.salt, self.kv.fork(one.table, one.computed), one.computed))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), forget=st.booleans())
    def release(self, data: st.DataObject, forget: bool) -> None:
        one = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.kv.release(one.table, forget=forget)

    @rule()
    def clear(self) -> None:
        self.kv.clear_cache()

    @invariant()
    def books_balance(self) -> None:
        self.kv.check([one.table for one in self.live])
        held = {block for one in self.live for block in one.table.blocks}
        assert self.kv.available == BLOCKS - len(held)

    @invariant()
    def every_table_holds_its_own_tokens(self) -> None:
        for one in self.live:
            for position in range(one.computed):
                cell = self.memory[one.table.blocks[position // SIZE]][position % SIZE]
                assert cell == (one.salt, one.tokens[position])


TestKvProgram = KvProgram.TestCase
TestKvProgram.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
