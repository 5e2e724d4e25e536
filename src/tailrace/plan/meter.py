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
        self._open: dict[str, Record] = {}  # by request id
        self._seen = 0  # records

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._every)
            self.samples.append((self._clock.now(), self.served()))

    def served(self) -> dict[str, float]:
        """By client, of ended and of running requests."""
        for record in self._records[self._seen :]:
            self._open[str(record.index)] = record
        self._seen = len(self._records)
        for name in [name for name, record in self._open.items() if record.end is not None]:
            record = self._open.pop(name)
            self._ended[record.client] += record.cost  # type: ignore[assignment]
        total = Counter(self._ended)
        for name, seconds in self._engine.live_costs():
            if name in self._open:
                total[self._open[name].client] += seconds  # type: ignore[assignment]
        return dict(total)
