"""How fast memory is right now: a shared machine has slow minutes, and a number without this beside it says little."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BYTES = 128 << 20


class BandwidthProbe:
    """Reads a buffer larger than most caches on every thread; NumPy releases the GIL while it sums."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(BYTES // 8, dtype=np.int64), threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, rounds: int = 3) -> float:
        """Best of `rounds`, in GB/s."""
        best = float("inf")
        for _ in range(rounds):
            begin = time.perf_counter()
            list(self._pool.map(np.max, self._parts))
            best = min(best, time.perf_counter() - begin)
        return BYTES / best / 1e9
