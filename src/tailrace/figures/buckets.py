"""Counts of values by their size, as plain numbers: one thread adds, any thread reads a moment later."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

# Seconds that requests wait and take, seconds between tokens, seconds of an engine's step.
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
ROWS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096)
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5)  # |actual / predicted - 1|
RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4, 10)  # actual / predicted


class Buckets:
    """`bounds` ascend; a value that equals one is counted below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def seen(self) -> int:
        return sum(self.counts)

    def up_to(self) -> list[int]:
        """How many values are at most each bound, then how many there are."""
        return list(accumulate(tuple(self.counts)))


@dataclass(slots=True)
class StepTally:
    """What an engine's steps were, since its start. `error` is of their predicted time; `cancel` the seconds from
    asking for an abort to its slots and blocks being free."""

    seconds: Buckets = field(default_factory=lambda: Buckets(STEP_SECONDS))
    error: Buckets = field(default_factory=lambda: Buckets(ERRORS))
    decode_rows: Buckets = field(default_factory=lambda: Buckets(ROWS))
    prefill_tokens: Buckets = field(default_factory=lambda: Buckets(TOKENS))
    cancel: Buckets = field(default_factory=lambda: Buckets(REQUEST_SECONDS))
