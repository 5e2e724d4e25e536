"""Time that moves from one awaited moment to the next, as in a simulation."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from itertools import count
from typing import Any, TypeVar

from tailrace.bench.client import Ask
from tailrace.bench.record import Record
from tailrace.clock import ManualClock

T = TypeVar("T")
TURNS = 30  # of the loop, after which everything that can run has run


class ManualPace:
    def __init__(self) -> None:
        self._clock = ManualClock()
        self.now = self._clock.now
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def until(self, moment: float) -> None:
        if moment <= self.now():
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (moment, next(self._numbers), future))
        await future

    async def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, moving time whenever nothing else can happen."""
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if self._waiting and not task.done():
                moment, _, future = heapq.heappop(self._waiting)
                if not future.done():
                    self._clock.advance(moment - self.now())
                    future.set_result(None)
        return task.result()


class FakeServer:
    """A `Sender` with so many slots, each taking `seconds` for a request; refuses those in `failing`, by number."""

    def __init__(
        self, pace: ManualPace, seconds: float, slots: int = 1000, failing: frozenset[int] = frozenset()
    ) -> None:
        self._pace, self._seconds, self._failing = pace, seconds, failing
        self._slots = asyncio.Semaphore(slots)
        self.asks: list[Ask] = []
        self.open = self.most_open = 0

    async def send(self, ask: Ask) -> tuple[Record, str]:
        self.asks.append(ask)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        now = self._pace.now()
        scheduled = now if ask.scheduled is None else ask.scheduled
        record = Record(ask.index, ask.talk, ask.turn, scheduled, now, ask.asked_prompt, ask.output_tokens)
        async with self._slots:
            await self._pace.until(self._pace.now() + self._seconds)
        self.open -= 1
        record.first = record.end = self._pace.now()
        record.output_tokens = ask.output_tokens
        if ask.index in self._failing:
            record.error = "500"
        return record, f"answer {ask.talk}.{ask.turn}"
