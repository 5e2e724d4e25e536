"""Where requests wait: bounded first in, first out. A later order replaces this class, not its interface.

Owns the order only. How many may wait is admission's decision, how many may start is the backend's room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the order looks at."""

    @property
    def id(self) -> str: ...
    @property
    def sequences(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...


W = TypeVar("W", bound=Waiting)


class FifoQueue(Generic[W]):
    """Every operation is O(1). `tokens` is the sum of prompt tokens of all that wait."""

    def __init__(self) -> None:
        self._entries: dict[str, W] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[W]:
        """In the order in which they would start."""
        return iter(self._entries.values())

    def push(self, entry: W) -> None:
        assert entry.id not in self._entries, entry.id
        self._entries[entry.id] = entry
        self.tokens += entry.prompt_tokens

    def pop_ready(self, fits: Callable[[W], bool]) -> W | None:
        """The next entry if it fits; a large one at the head is never overtaken."""
        head = next(iter(self._entries.values()), None)
        if head is None or not fits(head):
            return None
        self.remove(head)
        return head

    def remove(self, entry: W) -> bool:
        """Take an entry out wherever it stands; False when it is not here."""
        if self._entries.pop(entry.id, None) is None:
            return False
        self.tokens -= entry.prompt_tokens
        return True
