"""For how long something is kept, and when to look for what is older: its owner does so beside other work of its."""

from __future__ import annotations

from tailrace.clock import Clock

_BETWEEN = 3600.0  # seconds between looks


class Retention:
    """`seconds` until a thing is forgotten; 0: never."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._looked: float | None = None

    @property
    def since(self) -> float:
        """What was before, in seconds since the epoch, is to be forgotten."""
        return self._clock.wall() - self._seconds if self._seconds else 0.0

    def due(self) -> bool:
        """Whether to look now: the first time, and an hour after the last."""
        now = self._clock.now()
        if not self._seconds or (self._looked is not None and now - self._looked < _BETWEEN):
            return False
        self._looked = now
        return True
