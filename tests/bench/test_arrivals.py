"""Arrivals: deterministic by seed, with the mean and deviation of gaps that were asked for."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise
from random import Random

import pytest

from tailrace.bench.arrivals import arrivals

COUNT = 50_000


def gaps(kind: str, rate: float = 4.0, cv: float = 2.0, seed: int = 0) -> list[float]:
    times = list(islice(arrivals(kind, rate, cv, Random(seed)), COUNT))
    assert times[0] == 0.0
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize(("kind", "cv", "expected"), [("poisson", 9.0, 1.0), ("gamma", 3.0, 3.0), ("gamma", 0.5, 0.5)])
def test_mean_and_variation(kind: str, cv: float, expected: float) -> None:
    found = gaps(kind, cv=cv)
    mean = statistics.fmean(found)
    assert mean == pytest.approx(1 / 4.0, rel=0.04)
    assert statistics.pstdev(found) / mean == pytest.approx(expected, rel=0.05)


def test_constant() -> None:
    assert gaps("constant") == pytest.approx([0.25] * (COUNT - 1))


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_the_seed_decides(kind: str) -> None:
    assert gaps(kind, seed=3) == gaps(kind, seed=3) != gaps(kind, seed=4)
