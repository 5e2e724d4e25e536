"""Distributions as the numbers that are reported of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def quantile(ordered: Sequence[float], q: float) -> float:
    """Of sorted values, linear between neighbours (Hyndman and Fan's type 7, NumPy's default)."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Iterable[float | None], unit: float = 1000.0) -> dict[str, float] | None:
    """Count, mean, percentiles and largest of the values there are, times `unit` (milliseconds of seconds)."""
    ordered = sorted(value * unit for value in values if value is not None)
    if not ordered:
        return None
    points = {name: quantile(ordered, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    numbers = {"mean": math.fsum(ordered) / len(ordered), **points, "max": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 4) for name, value in numbers.items()}}
