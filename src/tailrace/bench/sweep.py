"""Finds the knee: the highest load that meets the SLO, or, without one, the lowest that reaches full throughput.

Loads double until it is passed, then the interval around it is halved. Knows nothing of servers: it is given a way to
measure one load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tailrace.frozen import frozen

GROWTH = 1.05  # a doubling that gains less than this has passed the knee
FULL = 0.95  # of the best throughput counts as all of it
HALVINGS = 3


@frozen
class Level:
    """One load measured. `attainment`: part of the requests that met the SLO; None without one."""

    load: float
    throughput: float
    attainment: float | None = None


@dataclass(slots=True)
class Sweep:
    """`whole`: loads are whole numbers (concurrency). What was measured stays in `levels`."""

    measure: Callable[[float], Awaitable[Level]]
    start: float
    limit: float
    whole: bool
    wanted: float | None = None  # attainment to reach; None: look at throughput
    levels: dict[float, Level] = field(default_factory=dict)

    async def run(self) -> None:
        load = min(self.start, self.limit)
        await self._at(load)
        while load < self.limit and not self._passed(load):
            load = min(load * 2, self.limit)
            await self._at(load)
        await self._bisect()

    def knee(self) -> Level | None:
        """None when not even the lowest load is good."""
        good = [load for load in sorted(self.levels) if self._good(load)]
        if not good:
            return None
        if self.wanted is None:
            return self.levels[good[0]]
        bad = [load for load in self.levels if not self._good(load)]
        below = [load for load in good if load < min(bad, default=float("inf"))]
        return self.levels[below[-1]] if below else None

    @property
    def limited(self) -> bool:
        """Whether the knee may lie above the highest load that was allowed."""
        return self.limit in self.levels and not self._passed(self.limit)

    async def _at(self, load: float) -> None:
        self.levels[load] = await self.measure(load)

    def _passed(self, load: float) -> bool:
        if self.wanted is not None:
            return not self._good(load)
        before = self.levels.get(load / 2)
        return before is not None and self.levels[load].throughput < before.throughput * GROWTH

    def _good(self, load: float) -> bool:
        level = self.levels[load]
        if self.wanted is not None:
            return level.attainment is not None and level.attainment >= self.wanted
        return level.throughput >= FULL * max(other.throughput for other in self.levels.values())

    async def _bisect(self) -> None:
        """Halve the interval between the knee and its neighbour on the other side of the rule."""
        for _ in range(HALVINGS):
            middle = self._middle()
            if middle is None:
                return
            await self._at(middle)

    def _middle(self) -> float | None:
        knee = self.knee()
        loads = sorted(self.levels)
        if knee is None:
            return None
        place = loads.index(knee.load)
        other = place + 1 if self.wanted is not None else place - 1
        if not 0 <= other < len(loads):
            return None
        low, high = sorted((loads[other], knee.load))
        middle = (low + high) // 2 if self.whole else (low + high) / 2
        return middle if low < middle < high else None
