"""How wrong predictions have been: quantiles of actual over predicted, by which the next ones are put right.

A prediction is a model's value times what the like of it has turned out to be. So a bias of the model vanishes after
some requests, and "it will be under two seconds with 90 %" is read from the errors seen, not assumed.
"""

from __future__ import annotations

from tailrace.control.sketch import Scale, Sketch
from tailrace.figures.buckets import RATIOS, Buckets

_MEMORY = 200.0  # predictions after which an old one counts 1/e
_ENOUGH = 20.0  # of a kind, before its own errors are used
_PRIOR = ((0.5, 1.0), (0.7, 2.0), (0.85, 3.0), (1.0, 4.0), (1.18, 3.0), (1.4, 2.0), (2.0, 1.0))  # ratio, weight


class PredictionErrors:
    """Of one predicted quantity, by kinds of request that err alike. `least`: values below it count as it, so that the
    ratio of two very small numbers says nothing."""

    def __init__(self, least: float = 0.0) -> None:
        self.seen = Buckets(RATIOS)  # actual over predicted, all since the start
        self._least = least
        self._scale = Scale(0.01, 100.0, 0.04)
        self._all = self._fresh()
        self._kinds: dict[str, Sketch] = {}

    def learn(self, kind: str, predicted: float, actual: float) -> None:
        """`predicted`: the model's value, before it was put right."""
        ratio = self.ratio(predicted, actual)
        self.seen.add(ratio)
        self._all.add(ratio)
        own = self._kinds.get(kind)
        if own is None:
            own = self._kinds[kind] = self._fresh()
        own.add(ratio)

    def ratio(self, predicted: float, actual: float) -> float:
        return max(actual, self._least, 1e-9) / max(predicted, self._least, 1e-9)

    def right(self, kind: str, predicted: float, part: float = 0.5) -> float:
        """What is not exceeded with probability `part`, given the model's value."""
        return max(predicted, self._least) * self._sketch(kind).quantile(part)

    def chance(self, kind: str, predicted: float, bound: float) -> float:
        """Probability that it will be at most `bound`."""
        return self._sketch(kind).part_below(bound / max(predicted, self._least, 1e-9))

    def quantile(self, part: float, kind: str | None = None) -> float:
        """Of actual over predicted."""
        return (self._all if kind is None else self._sketch(kind)).quantile(part)

    def _sketch(self, kind: str) -> Sketch:
        own = self._kinds.get(kind)
        return own if own is not None and own.seen >= _ENOUGH else self._all

    def _fresh(self) -> Sketch:
        made = Sketch(self._scale, _MEMORY)
        for ratio, weight in _PRIOR:
            made.counts[self._scale.bucket(ratio)] += weight
        return made
