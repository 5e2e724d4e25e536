"""Who was served how much, over time: standard device-seconds by client, looked at every so often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from tailrace.clock import Clock
from tailrace.plan.engine import VirtualEngine
from tailrace.plan.record import Record

Sample = tuple[float, dict[str, float]]  # time, and what each client has been served until then


class Meter:
    def __init__(self, records: Sequence[Record], engine: VirtualEngine, clock: Clock, every: float) -> None:
        self.samples: list[Sample] = []
        self._records = records
        self._engine = engine
        self._clock = clock
        self._every = every
        self._ended: Counter[str] = Counter()
        self._counted: set[int] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._every)
            self.samples.append((self._clock.now(), self.served()))

    def served(self) -> dict[str, float]:
        """By client, of ended and of running requests."""
        for record in self._records:
            if record.end is not None and record.index not in self._counted:
                self._counted.add(record.index)
                self._ended[record.client] += record.cost  # type: ignore[assignment]
        total = Counter(self._ended)
        clients = {str(record.index): record.client for record in self._records if record.end is None}
        for name, seconds in self._engine.live_costs():
            if name in clients:
                total[clients[name]] += seconds  # type: ignore[assignment]
        return dict(total)
