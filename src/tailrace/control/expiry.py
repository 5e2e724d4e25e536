"""Things that are over at a time: one timer for the earliest of them, nothing polls.

The times are on the injected clock. A timer of the event loop wakes it; when it wakes early by that clock, it waits
on, and so it does for the next when the item it was for has been dropped: most are, and stopping a timer for each would
cost more. `due` may also be called by whoever moves the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from tailrace.clock import Clock

_SWEEP = 64  # dropped items that may stay, besides half of the heap


class Expiry:
    def __init__(self, clock: Clock, expired: Callable[[str], None]) -> None:
        """`expired` is called with the name of each item whose time has come."""
        self._clock = clock
        self._expired = expired
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def add(self, name: str, at: float) -> None:
        assert name not in self._times, name
        self._times[name] = at
        heappush(self._heap, (at, name))
        self._arm()

    def drop(self, name: str) -> None:
        """It does not matter any more; unknown names are ignored."""
        self._times.pop(name, None)
        if len(self._heap) > 2 * len(self._times) + _SWEEP:
            self._heap = sorted((at, name) for name, at in self._times.items())

    def due(self) -> None:
        """Call `expired` for all whose time has come."""
        self._timer, self._timer_at = None, float("inf")
        now = self._clock.now()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._times):
            at, name = heappop(self._heap)
            if self._times.get(name) == at:
                del self._times[name]
                self._expired(name)
        self._arm()

    def _arm(self) -> None:
        if not self._heap or self._heap[0][0] >= self._timer_at:
            return
        self._disarm()
        self._timer_at = self._heap[0][0]
        delay = max(self._timer_at - self._clock.now(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self.due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")
