"""The prefix tree: which whole blocks of tokens are in KV memory. Owns nodes and their eviction order, not counts.

A node is one block, found under its parent by the block's exact tokens, so there are no hash collisions and a
match costs one dictionary look-up a block. Each salt has its own root; equal tokens under different salts never
meet. Needs no KV memory, so the simulator builds the same tree.

Eviction takes unreferenced leaves, least recently used first, in O(1). `idle` holds the unreferenced nodes in the
order they became so. Whoever references a node references its ancestors too, and lets go of the deepest first;
therefore a child always stands before its parent in `idle`, and the first node of `idle` is always a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class Node:
    __slots__ = ("block", "children", "key", "parent")

    def __init__(self, key: bytes, block: int, parent: Node | None) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children: dict[bytes, Node] = {}


class RadixTree:
    def __init__(self) -> None:
        self._roots: dict[bytes, Node] = {}  # by salt; a root has no block
        self.idle: OrderedDict[Node, None] = OrderedDict()

    def root(self, salt: bytes) -> Node:
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = Node(salt, -1, None)
        return node

    def find_root(self, salt: bytes) -> Node | None:
        return self._roots.get(salt)

    def walk(self, keys: Iterator[bytes], salt: bytes) -> Iterator[Node]:
        """The nodes that match, from the top. Safe to call from another thread: it only looks things up."""
        node = self._roots.get(salt)
        for key in keys:
            node = None if node is None else node.children.get(key)
            if node is None:
                return
            yield node

    def insert(self, parent: Node, key: bytes, block: int) -> Node:
        """Name a referenced block. The caller knows that `parent` has no such child yet."""
        assert key not in parent.children
        node = parent.children[key] = Node(key, block, parent)
        return node

    def rest(self, node: Node) -> None:
        """The last reference to the node's block is gone."""
        self.idle[node] = None

    def wake(self, node: Node) -> None:
        """The node's block is referenced again."""
        self.idle.pop(node, None)

    def evict(self) -> Node:
        """Remove the least recently used unreferenced leaf. There is one exactly when `idle` is not empty."""
        node, _ = self.idle.popitem(last=False)
        self._unlink(node)
        return node

    def forget(self, node: Node) -> bool:
        """Remove this node if it is an unreferenced leaf."""
        if node.children or node not in self.idle:
            return False
        del self.idle[node]
        self._unlink(node)
        return True

    def _unlink(self, node: Node) -> None:
        assert not node.children, "only leaves are evicted"
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        if parent.parent is None and not parent.children:
            del self._roots[parent.key]

    def nodes(self) -> Iterator[Node]:
        """Every node that names a block; for integrity checks."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node
