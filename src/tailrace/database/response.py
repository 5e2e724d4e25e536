"""A kept response, as it lies in a store. Without SQL, so that who serves may import it."""

from __future__ import annotations

from tailrace.frozen import frozen

_OVERHEAD = 1024  # bytes of a kept response beside its texts, roughly


@frozen
class KeptResponse:
    """`body` is the response and `items` the list of its own input items, as JSON; `previous` the id before it."""

    id: str
    body: bytes
    items: bytes
    previous: str | None = None

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return len(self.body) + len(self.items) + _OVERHEAD
