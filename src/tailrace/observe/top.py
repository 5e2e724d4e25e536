"""Which names have a line of their own where there may be thousands: so many at most, the rest are one line."""

from __future__ import annotations

from collections.abc import Mapping

OTHER = "other"
MOST = 32


class Top:
    """Places are given when somebody looks, to those that have most then, and are kept. As the rest share a line only
    while no place is free, no line ever falls, and all lines together are the whole."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._named: set[str] = set()

    def label(self, name: str) -> str:
        return name if name in self._named else OTHER

    def choose(self, totals: Mapping[str, float]) -> None:
        """Give the free places."""
        free = self._most - len(self._named)
        if free > 0:
            others = [name for name in totals if name not in self._named]
            self._named.update(sorted(others, key=lambda name: (-totals[name], name))[:free])
