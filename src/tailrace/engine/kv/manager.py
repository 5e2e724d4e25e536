"""Which KV blocks each sequence uses, and which finished blocks others may reuse. Decides; never touches memory.

    prompt  |  block 0  |  block 1  |  block 2  | part |
            |<------ path: named in the tree -->|<- own: this table's alone, or shared by a fork ->|

`open` matches a prompt against the tree and references what it finds. `reserve` gives a table the blocks that a
step will write, evicting cached blocks when the free list is empty. `commit` names blocks in the tree as soon as
they are full, so that a later identical prompt hits while the first still runs; when another sequence was faster
with the same tokens, the table takes that block and frees its own (their contents are equal to the bit). `fork`
shares all blocks; the block that is only partly full is copied when one of its holders first writes (copy-on-
write). `release` frees a table's own blocks first and keeps the named ones as cache.

Invariant (`check`): free + cached + referenced = total, and whoever references a node references its ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tailrace.engine.kv.pool import BlockPool
from tailrace.engine.kv.radix import Node, RadixTree
from tailrace.frozen import frozen
from tailrace.types import Tokens

BLOCK_TOKENS = 64


class BlockCopy(NamedTuple):
    """Copy the contents of block `src` to block `dst` before the step's forward."""

    src: int
    dst: int


@frozen
class Eviction:
    """A cached block was given up; `reason` is machine-readable."""

    block: int
    reason: str = "lru"


class BlockTable:
    """One sequence's blocks in token order. `row` mirrors `blocks` for the native call; only KvManager writes it.

    `changes` counts the changes of `row`, so that a copy can be known to be current.
    """

    __slots__ = ("blocks", "changes", "path", "row", "salt", "shared_tail")

    def __init__(self, salt: bytes, max_blocks: int) -> None:
        self.salt = salt
        self.blocks: list[int] = []
        self.row = np.zeros(max_blocks, dtype=np.int32)
        self.changes = 0
        self.path: list[Node] = []  # the tree's nodes of the first len(path) blocks
        self.shared_tail = False  # the last block may be partly full and held by another table too

    def append(self, block: int) -> None:
        self.row[len(self.blocks)] = block
        self.blocks.append(block)
        self.changes += 1

    def replace(self, index: int, block: int) -> None:
        self.row[index] = block
        self.blocks[index] = block
        self.changes += 1


class KvManager:
    def __init__(
        self, total_blocks: int, *, max_blocks: int, block_tokens: int = BLOCK_TOKENS, prefix_cache: bool = True
    ) -> None:
        """`max_blocks` is the most blocks one sequence may have (its context)."""
        self.pool = BlockPool(total_blocks)
        self.tree = RadixTree()
        self.block_tokens = block_tokens
        self.max_blocks = max_blocks
        self.prefix_cache = prefix_cache
        self._copies: list[BlockCopy] = []
        self._evictions: list[Eviction] = []

    @property
    def available(self) -> int:
        """Blocks that could be reserved now: free, or cached and unreferenced."""
        return self.pool.free + len(self.tree.idle)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def match(self, tokens: Tokens, salt: bytes) -> int:
        """Prompt tokens that are cached now, never all of them. Changes nothing; callable from any thread."""
        return self.block_tokens * sum(1 for _ in self._walk(tokens, salt))

    def open(self, tokens: Tokens, salt: bytes, *, reuse: bool = True) -> BlockTable:
        """A table that references the longest cached prefix (its length: `matched(table)` tokens)."""
        table = BlockTable(salt, self.max_blocks)
        if reuse:
            for node in self._walk(tokens, salt):
                self._hold(node)
                table.append(node.block)
                table.path.append(node)
        return table

    def matched(self, table: BlockTable) -> int:
        return len(table.path) * self.block_tokens

    def extend(self, table: BlockTable, tokens: Tokens) -> int:
        """Take over blocks that others committed since `open`, while the table stands at a block boundary.

        Returns the tokens the table has then. Only for a table that has computed exactly `matched(table)` tokens.
        """
        size = self.block_tokens
        node = table.path[-1] if table.path else self.tree.find_root(table.salt)
        for index in range(len(table.path), (len(tokens) - 1) // size):
            if node is not None:
                node = node.children.get(tokens[index * size : (index + 1) * size].tobytes())
            if node is None:
                break
            self._adopt(table, index, node)
        return self.matched(table)

    def holds(self, table: BlockTable, position: int) -> bool:
        """Whether the table can be written there as it is."""
        return position < len(table.blocks) * self.block_tokens and not table.shared_tail

    def reserve(self, table: BlockTable, start: int, stop: int) -> bool:
        """Blocks for writing positions start..stop-1: all of them, or none and False."""
        size = self.block_tokens
        need = -(-stop // size) - len(table.blocks)
        if need <= 0 and not table.shared_tail:
            return True
        copy = self._must_copy(table, start)
        if max(need, 0) + copy > self.available:
            return False
        if copy:
            self._copy_on_write(table, start // size)
        table.shared_tail = False
        for _ in range(need):
            table.append(self._take())
        return True

    def commit(self, table: BlockTable, tokens: Tokens, computed: int) -> None:
        """The first `computed` of `tokens` are in memory: name the blocks that are full by now."""
        if not self.prefix_cache:
            return
        size = self.block_tokens
        for index in range(len(table.path), computed // size):
            parent = self._parent(table)
            key = tokens[index * size : (index + 1) * size].tobytes()
            node = parent.children.get(key)
            if node is None:
                table.path.append(self.tree.insert(parent, key, table.blocks[index]))
            else:
                self._adopt(table, index, node)

    def fork(self, table: BlockTable, computed: int) -> BlockTable:
        """A second table over the same first `computed` tokens."""
        twin = BlockTable(table.salt, self.max_blocks)
        for block in table.blocks[: self.blocks_for(computed)]:
            self.pool.share(block)
            twin.append(block)
        twin.path = table.path[: len(twin.blocks)]
        if computed % self.block_tokens:
            table.shared_tail = twin.shared_tail = True
        return twin

    def release(self, table: BlockTable, *, forget: bool = False) -> None:
        """Give up every block of the table. `forget` also drops its cached blocks that nobody else uses."""
        for index in range(len(table.blocks) - 1, -1, -1):
            block = table.blocks[index]
            node = table.path[index] if index < len(table.path) else None
            if not self.pool.drop(block):
                continue
            if node is None:
                self.pool.put_back(block)
                continue
            self.tree.rest(node)
            if forget and self.tree.forget(node):
                self.pool.put_back(block)
        table.blocks.clear()
        table.path.clear()

    def trim(self, table: BlockTable, tokens: int) -> None:
        """Give up the blocks behind the first `tokens` positions: what was written there counts for nothing."""
        keep = self.blocks_for(tokens)
        assert keep >= len(table.path), "named blocks are never void"
        while len(table.blocks) > keep:
            block = table.blocks.pop()
            table.changes += 1
            if self.pool.drop(block):
                self.pool.put_back(block)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies that the next step must make first, in this order."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def take_evictions(self) -> tuple[Eviction, ...]:
        evictions, self._evictions = tuple(self._evictions), []
        return evictions

    def clear_cache(self) -> None:
        """Evict everything that nobody references."""
        while self.tree.idle:
            self.pool.put_back(self.tree.evict().block)

    def reset(self) -> None:
        """Forget everything, whoever holds it."""
        self.pool = BlockPool(self.pool.total)
        self.tree = RadixTree()
        self._copies.clear()
        self._evictions.clear()

    def check(self, tables: list[BlockTable] | None = None) -> None:
        """Raise AssertionError unless the books balance; with all live `tables`, also that counts are theirs."""
        free = self.pool.free_blocks()
        named = [node.block for node in self.tree.nodes()]
        cached = {node.block for node in self.tree.idle}
        referenced = {block for block, refs in enumerate(self.pool.refs) if refs}
        assert len(free) == self.pool.free, "a block is on the free list twice"
        assert len(named) == len(set(named)), "a block is named twice"
        assert not free & set(named), "a free block is named"
        assert not referenced & free and not referenced & cached, "a referenced block is free or evictable"
        assert len(free) + len(cached) + len(referenced) == self.pool.total, "blocks leaked"
        assert cached == {block for block in named if not self.pool.refs[block]}, "an unused block is not evictable"
        self._check_order()
        if tables is not None:
            self._check_tables(tables)

    def _check_order(self) -> None:
        seen: set[Node] = set()
        for node in self.tree.idle:
            assert all(child in seen for child in node.children.values()), "a parent would be evicted before its child"
            seen.add(node)

    def _check_tables(self, tables: list[BlockTable]) -> None:
        counts = [0] * self.pool.total
        for table in tables:
            for index, block in enumerate(table.blocks):
                counts[block] += 1
                assert table.row[index] == block, "the mirror differs"
            assert [node.block for node in table.path] == table.blocks[: len(table.path)], "path and blocks differ"
        assert counts == self.pool.refs, "reference counts are not those of the live tables"

    def _walk(self, tokens: Tokens, salt: bytes) -> Iterator[Node]:
        if not self.prefix_cache:
            return iter(())
        size = self.block_tokens
        whole = (len(tokens) - 1) // size  # the last token is always computed: its logits are needed
        return self.tree.walk((tokens[i * size : (i + 1) * size].tobytes() for i in range(whole)), salt)

    def _parent(self, table: BlockTable) -> Node:
        return table.path[-1] if table.path else self.tree.root(table.salt)

    def _hold(self, node: Node) -> None:
        if self.pool.refs[node.block] == 0:
            self.tree.wake(node)
        self.pool.share(node.block)

    def _adopt(self, table: BlockTable, index: int, node: Node) -> None:
        self._hold(node)
        if index < len(table.blocks):
            own = table.blocks[index]
            table.replace(index, node.block)
            if self.pool.drop(own):
                self.pool.put_back(own)
        else:
            table.append(node.block)
        table.path.append(node)

    def _must_copy(self, table: BlockTable, start: int) -> bool:
        if not table.shared_tail:
            return False
        index = start // self.block_tokens
        return index < len(table.blocks) and self.pool.refs[table.blocks[index]] > 1

    def _copy_on_write(self, table: BlockTable, index: int) -> None:
        src, dst = table.blocks[index], self._take()
        self._copies.append(BlockCopy(src, dst))
        self.pool.drop(src)
        table.replace(index, dst)

    def _take(self) -> int:
        if not self.pool.free:
            node = self.tree.evict()
            self._evictions.append(Eviction(node.block))
            self.pool.put_back(node.block)
        return self.pool.take()
