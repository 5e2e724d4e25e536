"""How evenly tenants have been served lately: what each got for its weight, and Jain's index of it."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

MEMORY = 300.0  # seconds after which a device-second counts 1/e
_NOTHING = 1e-6  # device-seconds that count as none


class Served:
    def __init__(self) -> None:
        self._served: dict[str, tuple[float, float]] = {}  # device-seconds, decayed to that time

    def add(self, tenant: str, device_seconds: float, now: float) -> None:
        self._served[tenant] = (self.lately(tenant, now) + device_seconds, now)

    def lately(self, tenant: str, now: float) -> float:
        """Standard device-seconds, older ones counting less."""
        amount, at = self._served.get(tenant, (0.0, now))
        return amount * exp((at - now) / MEMORY)

    def index(self, weight: Callable[[str], float], now: float) -> float:
        """Of what tenants got lately for their weight: 1 when that is equal, 1/n when one of n got all."""
        shares = [got / weight(name) for name in self._served if (got := self.lately(name, now)) > _NOTHING]
        squares = sum(share * share for share in shares)
        return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
