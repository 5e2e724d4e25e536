"""Quantiles of positive numbers in a fixed, small amount of memory, with recent numbers counting more.

Counts over buckets whose bounds grow geometrically, as in DDSketch (arXiv 1908.10693): a quantile is right within half
a bucket's width. Two things are added that its libraries lack: every new number takes a little from all older ones
(exponential decay), and a number that is only known to be at least so large (an answer that was cut off) is spread over
the buckets above it as the numbers known in full are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, log
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
_sum = np.add.reduce  # as the arrays' own method, without its way there


class Scale:
    """Bucket bounds from `low` to `high`, each `1 + width` times the one before. Shared by all sketches of a kind."""

    def __init__(self, low: float, high: float, width: float) -> None:
        count = ceil(log(high / low) / log(1.0 + width)) + 2
        bounds = low * (1.0 + width) ** np.arange(count - 1)
        self.bounds: list[float] = bounds.tolist()  # bucket i holds bounds[i-1] <= x < bounds[i]
        edges = np.concatenate((bounds[:1] / (1.0 + width), bounds, bounds[-1:] * (1.0 + width)))
        self.middles: F64 = np.sqrt(edges[:-1] * edges[1:])  # what a bucket's numbers are taken to be
        self.bucket: Callable[[float], int] = partial(bisect_right, self.bounds)  # that a number belongs to


class Sketch:
    def __init__(self, scale: Scale, memory: float, counts: F64 | None = None) -> None:
        """`memory`: numbers after which an old one counts 1/e."""
        self.scale = scale
        self.counts = np.zeros(len(scale.middles)) if counts is None else counts
        self.seen = 0.0  # numbers that still count
        self._keep = 1.0 - 1.0 / memory

    def add(self, value: float, *, at_least: bool = False) -> None:
        """One number. `at_least`: it would have been this large or larger."""
        self.counts *= self._keep
        self.seen = self.seen * self._keep + 1.0
        bucket = self.scale.bucket(value)
        above = self.counts[bucket:]
        total = float(_sum(above)) if at_least else 0.0
        if total > 0.0:
            above += above / total
        else:
            self.counts[bucket] += 1.0

    def mean(self, above: float = 0.0, most: float = float("inf")) -> float:
        """Of the numbers over `above`, each counted as `most` where it is larger; NaN without any."""
        counts, middles = self._over(above)
        total = float(_sum(counts))
        return float(counts @ np.minimum(middles, most)) / total if total > 0.0 else float("nan")

    def any(self, above: float) -> bool:
        """Whether there are numbers over `above`."""
        counts = self.counts if above <= 0.0 else self.counts[self.scale.bucket(above) :]
        return bool(_sum(counts) > 0.0)

    def quantile(self, part: float, above: float = 0.0) -> float:
        """The number that this part of those over `above` do not exceed; NaN without any."""
        return self.quantiles((part,), above)[0]

    def quantiles(self, parts: Sequence[float], above: float = 0.0) -> list[float]:
        """Several at once."""
        counts, middles = self._over(above)
        total = counts.cumsum()
        whole = float(total[-1]) if len(total) else 0.0
        if whole <= 0.0:
            return [float("nan")] * len(parts)
        return [float(middles[total.searchsorted(part * whole)]) for part in parts]

    def part_below(self, value: float) -> float:
        """The part of the numbers that are at most `value`; linear inside a bucket. NaN without any."""
        total = float(self.counts.sum())
        if total <= 0.0:
            return float("nan")
        bucket = self.scale.bucket(value)
        below = float(self.counts[:bucket].sum())
        if 0 < bucket < len(self.scale.bounds):
            low, high = self.scale.bounds[bucket - 1], self.scale.bounds[bucket]
            below += float(self.counts[bucket]) * (value - low) / (high - low)
        return below / total

    def plain(self) -> dict[str, Any]:
        """As JSON: bucket and count of those that hold anything."""
        held = np.nonzero(self.counts > 1e-6)[0]
        return {
            "seen": round(self.seen, 3), "buckets": held.tolist(),
            "counts": [round(count, 4) for count in self.counts[held].tolist()],
        }  # fmt: skip

    def restore(self, plain: dict[str, Any]) -> None:
        """Take over what `plain` wrote. Raises KeyError, TypeError, ValueError, IndexError for anything else."""
        counts = np.zeros_like(self.counts)
        counts[np.array(plain["buckets"], dtype=np.int64)] = np.array(plain["counts"], dtype=np.float64)
        seen = float(plain["seen"])
        if not (np.isfinite(counts).all() and (counts >= 0).all() and seen >= 0):
            raise ValueError("counts are not numbers of at least 0")
        self.counts, self.seen = counts, seen

    def _over(self, above: float) -> tuple[F64, F64]:
        if above <= 0.0:
            return self.counts, self.scale.middles
        first = self.scale.bucket(above)
        return self.counts[first:], np.maximum(self.scale.middles[first:], above)
