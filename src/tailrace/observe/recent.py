"""The tails of the last requests, for people who look now. Histories belong to whoever scrapes the metrics."""

from __future__ import annotations

from collections import deque

from tailrace.figures.numbers import distribution
from tailrace.observe.timings import Timings

KEPT = 512  # requests


class Recent:
    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            name: deque(maxlen=KEPT) for name in ("queue_ms", "ttft_ms", "tpot_ms", "total_ms")
        }

    def add(self, times: Timings) -> None:
        """Of a request that made a token."""
        for name, values in self._values.items():
            value = getattr(times, name)
            if value is not None:
                values.append(value)

    def tails(self) -> dict[str, dict[str, float] | None]:
        """Count, mean, P50, P95, P99 and largest, in milliseconds; None where there is nothing yet."""
        return {name: distribution(values, 1.0) for name, values in self._values.items()}
