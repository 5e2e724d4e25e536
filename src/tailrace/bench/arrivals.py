"""When requests arrive in an open loop: seconds from the start, without end, decided before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def arrivals(kind: str, rate: float, cv: float, rng: Random) -> Iterator[float]:
    """Arrival times with mean gap 1 / `rate`. A gamma's shape is 1 / cv^2: its gaps have deviation cv / rate."""
    now = 0.0
    while True:
        yield now
        now += _gap(kind, rate, cv, rng)


def _gap(kind: str, rate: float, cv: float, rng: Random) -> float:
    if kind == "constant":
        return 1 / rate
    if kind == "gamma":
        return rng.gammavariate(1 / (cv * cv), cv * cv / rate)
    return rng.expovariate(rate)
