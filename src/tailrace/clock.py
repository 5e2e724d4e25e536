"""Time, injected everywhere so that tests and the simulator own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a monotonic clock; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, for timestamps that people read."""
        ...


class SystemClock:
    now = staticmethod(time.monotonic)  # as they are: a request asks thirty times
    wall = staticmethod(time.time)


class WorkClock:
    """Counts the processor time of the calling thread: for bounds on work, which waiting for a processor must not use
    up. `wall` is the other clock's."""

    now = staticmethod(time.thread_time)

    def __init__(self, wall: Clock) -> None:
        self.wall = wall.wall


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self, now: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now += seconds
        self._wall += seconds
