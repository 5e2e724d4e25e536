"""Calendar days and months of UTC, in which budgets of money are spent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum


class Window(StrEnum):
    DAY = "day"
    MONTH = "month"

    def begin(self, wall: float) -> float:
        """Of the one that `wall` is in. Both are seconds since the epoch."""
        return self._first(wall).timestamp()

    def end(self, wall: float) -> float:
        """When the next one begins."""
        first = self._first(wall)
        if self is Window.DAY:
            return (first + timedelta(days=1)).timestamp()
        return (first + timedelta(days=32)).replace(day=1).timestamp()

    def _first(self, wall: float) -> datetime:
        midnight = datetime.fromtimestamp(wall, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight if self is Window.DAY else midnight.replace(day=1)
