"""Reference counts and the free list of KV blocks. Knows block numbers only: no tokens, no memory, no tree.

A block is free (on the list), referenced (count above zero) or cached (count zero, kept off the list because the
prefix tree still names it). Who caches decides; the pool never evicts.
"""

from __future__ import annotations


class BlockPool:
    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, got {total}")
        self.total = total
        self.refs = [0] * total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, now referenced once. The caller has made sure that there is one."""
        block = self._free.pop()
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        self.refs[block] += 1

    def drop(self, block: int) -> bool:
        """Give up one reference; True when it was the last, and the block is now the caller's to cache or free."""
        assert self.refs[block] > 0, f"block {block} dropped more often than taken"
        self.refs[block] -= 1
        return self.refs[block] == 0

    def put_back(self, block: int) -> None:
        """Return an unreferenced block to the free list."""
        assert self.refs[block] == 0, f"block {block} is still referenced"
        self._free.append(block)

    def free_blocks(self) -> frozenset[int]:
        """For integrity checks."""
        return frozenset(self._free)
