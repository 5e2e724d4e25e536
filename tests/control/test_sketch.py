"""Quantiles in fixed memory, against the numbers themselves."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.sketch import Scale, Sketch

SCALE = Scale(1.0, 100_000.0, 0.05)


def sketch(*values: float, memory: float = 1e12) -> Sketch:
    made = Sketch(SCALE, memory)
    for value in values:
        made.add(value)
    return made


@given(st.lists(st.floats(1.0, 90_000.0), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_quantiles_are_right_within_a_bucket(values: list[float], part: float) -> None:
    found = sketch(*values).quantile(part)
    below = sum(value <= found * 1.05 for value in values)
    under = sum(value < found / 1.05 for value in values)
    assert under <= part * len(values) + 1e-6 and below >= part * len(values) - 1e-6


def test_quantiles_of_a_known_distribution() -> None:
    made = sketch(*np.random.default_rng(1).lognormal(5.0, 1.0, 5000))
    for part, z in ((0.5, 0.0), (0.8, 0.8416), (0.9, 1.2816), (0.99, 2.3263)):
        assert made.quantile(part) == pytest.approx(math.exp(5.0 + z), rel=0.12)
    assert made.mean() == pytest.approx(math.exp(5.5), rel=0.05)
    assert made.part_below(math.exp(5.0)) == pytest.approx(0.5, abs=0.03)


def test_no_numbers_have_no_quantile() -> None:
    assert math.isnan(sketch().quantile(0.5))
    assert math.isnan(sketch().mean())
    assert math.isnan(sketch().part_below(3.0))
    assert math.isnan(sketch(3.0).quantile(0.5, above=10.0))


def test_what_is_above_is_asked_of_those_above_alone() -> None:
    made = sketch(*[10.0] * 90, *[1000.0] * 10)
    assert made.quantile(0.5) == pytest.approx(10.0, rel=0.05)
    assert made.quantile(0.1, above=100.0) == pytest.approx(1000.0, rel=0.05)
    assert made.mean(above=100.0) == pytest.approx(1000.0, rel=0.05)
    assert made.mean(above=100.0, most=400.0) == 400.0


def test_old_numbers_fade() -> None:
    made = sketch(*[10.0] * 500, *[1000.0] * 300, memory=100)
    assert made.quantile(0.2) == pytest.approx(1000.0, rel=0.05)
    assert made.seen == pytest.approx(100, rel=0.01)


def test_a_number_that_was_cut_off_is_spread_over_those_above_it() -> None:
    made = sketch(*[10.0] * 50, *[200.0] * 25, *[800.0] * 25)
    for _ in range(1000):
        made.add(100.0, at_least=True)
    counts = [made.part_below(300.0) - made.part_below(100.0), 1.0 - made.part_below(300.0)]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
    assert made.part_below(50.0) == pytest.approx(50 / 1100, rel=0.01)


def test_beyond_the_scale_counts_as_its_end() -> None:
    made = sketch(0.001, 1e9)
    assert made.quantile(0.1) <= 1.0
    assert made.quantile(0.9) == pytest.approx(100_000.0, rel=0.15)


def test_a_sketch_survives_as_json() -> None:
    made = sketch(3.0, 70.0, 70.0, 900.0)
    again = Sketch(SCALE, 10.0)
    again.restore(json.loads(json.dumps(made.plain())))
    assert again.seen == pytest.approx(made.seen) == pytest.approx(4.0)
    assert again.counts.tolist() == pytest.approx(made.counts.tolist())


@pytest.mark.parametrize(
    "plain",
    [
        {"seen": 1, "buckets": [1]},
        {"seen": 1, "buckets": [10**6], "counts": [1]},
        {"seen": 1, "buckets": [1], "counts": [-1]},
        {"seen": "x", "buckets": [1], "counts": [1]},
        {"seen": 1, "buckets": "abc", "counts": [1]},
    ],
)
def test_rubbish_is_refused(plain: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        sketch().restore(plain)
