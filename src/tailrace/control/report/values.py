"""Numbers of many requests, for percentiles: all of them, or a sketch where they are too many to be kept."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import inf

from tailrace.control.sketch import Scale, Sketch
from tailrace.figures.chart import Points, cumulated
from tailrace.figures.numbers import distribution

_WIDTH = 0.01
ACCURACY = _WIDTH / 2  # of a sketched percentile
_SCALE = Scale(1.0, 1e11, _WIDTH)  # microseconds: a day and more
_MS = 1e-3


class Values:
    """Microseconds."""

    def __init__(self) -> None:
        self._all: array[float] | None = array("d")
        self._sketch: Sketch | None = None
        self._count, self._sum, self._most = 0, 0.0, 0.0  # once sketched

    def add(self, value: float) -> None:
        if self._all is not None:
            self._all.append(value)
        else:
            self._put(value)

    def sketch(self) -> None:
        """From now on in a fixed amount of memory."""
        if self._all is None:
            return
        values, self._all = self._all, None
        self._sketch = Sketch(_SCALE, inf)
        for value in values:
            self._put(value)

    def distribution(self) -> dict[str, float] | None:
        """Count, mean, P50, P95, P99 and largest, in milliseconds; None without any."""
        if self._all is not None:
            return distribution(self._all, _MS)
        assert self._sketch is not None
        if not self._count:
            return None
        names = ("p50", "p95", "p99")
        points = dict(zip(names, self._sketch.quantiles((0.5, 0.95, 0.99)), strict=True))
        numbers = {"mean": self._sum / self._count, **points, "max": self._most}
        return {"count": self._count, **{name: round(min(x, self._most) * _MS, 4) for name, x in numbers.items()}}

    def points(self) -> Points:
        """The part of the values that are at most so many milliseconds."""
        if self._all is not None:
            return cumulated(value * _MS for value in self._all) if self._all else []
        assert self._sketch is not None
        held = self._sketch.counts > 0
        parts = self._sketch.counts.cumsum() / max(self._count, 1)
        return list(zip((self._sketch.scale.middles[held] * _MS).tolist(), parts[held].tolist(), strict=True))

    @classmethod
    def together(cls, parts: Iterable[Values]) -> Values:
        """All of them; they are all sketched or none is."""
        whole = cls()
        for part in parts:
            if part._all is not None:
                assert whole._all is not None
                whole._all.extend(part._all)
                continue
            whole.sketch()
            assert part._sketch is not None and whole._sketch is not None
            whole._sketch.counts += part._sketch.counts
            whole._count += part._count
            whole._sum += part._sum
            whole._most = max(whole._most, part._most)
        return whole

    def _put(self, value: float) -> None:
        assert self._sketch is not None
        self._sketch.counts[_SCALE.bucket(value)] += 1.0
        self._count += 1
        self._sum += value
        self._most = max(self._most, value)
