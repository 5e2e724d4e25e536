"""Time as the drivers see it: a clock that one can wait on. Tests move theirs by hand."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tailrace.clock import Clock


class Pace(Protocol):
    def now(self) -> float:
        """Seconds; only differences mean anything."""
        ...

    async def until(self, moment: float) -> None:
        """Return at `moment`, at once when it has passed; always lets others run."""
        ...


class RealPace:
    def __init__(self, clock: Clock) -> None:
        self.now = clock.now

    async def until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - self.now()))
