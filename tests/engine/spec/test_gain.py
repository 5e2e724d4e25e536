"""Guesses are computed exactly as long as the step makes more tokens per second with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.cost import CostModel
from tailrace.engine.spec.gain import MOST_GUESSES, Gain
from tailrace.engine.step import Work


def gain(step: float, row: float, rows: int = 1) -> Gain:
    """Beside `rows` decode rows, of steps that take `step` + `row` for each."""
    return Gain(CostModel(coefficients=np.array([step, 0.0, row, 0.0, 0.0])), Work(decode=rows))


def test_alone_even_unlikely_guesses_pay_where_rows_cost_little() -> None:
    assert gain(0.01, 0.0001).least_chance == pytest.approx(0.0139, rel=0.01)
    assert gain(0.01, 0.0001).allot([[0.9, 0.8, 0.3, 0.001]]) == [3]


def test_beside_many_rows_only_near_certainty_pays() -> None:
    assert gain(0.01, 0.001).allot([[0.6]]) == [1]
    assert gain(0.01, 0.001, rows=32).allot([[0.6], [0.8]] * 16) == [0] * 32
    assert gain(0.01, 0.001, rows=200).least_chance > 1


def test_the_likeliest_guesses_come_first_whoever_makes_them() -> None:
    assert gain(0.01, 0.003, rows=3).allot([[0.9, 0.4], [0.2], [0.95, 0.85]]) == [1, 0, 2]


def test_each_further_guess_has_to_beat_the_pace_reached_so_far() -> None:
    long, short = (gain(0.01, 0.002).allot([[rate**i for i in range(1, 13)]])[0] for rate in (0.9, 0.4))
    assert 4 < long < 12
    assert short == 1


def test_free_rows_are_used_to_the_bound() -> None:
    assert sum(gain(0.01, 0.0).allot([[0.9] * 12] * 20)) == MOST_GUESSES


@given(
    rows=st.lists(st.lists(st.floats(0.01, 1.0), max_size=6), min_size=1, max_size=5),
    step=st.floats(1e-4, 1.0),
    row=st.floats(1e-5, 1.0),
)
def test_the_pace_never_falls(rows: list[list[float]], step: float, row: float) -> None:
    chances = [sorted(one, reverse=True) for one in rows]
    sizes = gain(step, row, len(rows)).allot(chances)
    expected = len(rows) + sum(sum(one[:size]) for one, size in zip(chances, sizes, strict=True))
    seconds = step + row * (len(rows) + sum(sizes))
    assert expected / seconds >= len(rows) / (step + row * len(rows)) * (1 - 1e-9)


def test_the_memory_that_guesses_read_counts() -> None:
    cost = CostModel(coefficients=np.array([0.01, 0.0, 0.001, 1e-6, 0.0]))
    short, long = Gain(cost, Work(decode=1, kv_tokens=100)), Gain(cost, Work(decode=1, kv_tokens=4000))
    assert short.row_seconds == pytest.approx(0.001 + 50e-6)
    assert long.row_seconds == pytest.approx(0.001 + 2000e-6)


def test_a_draft_model_says_as_much_as_its_time_is_worth() -> None:
    lengths = [gain(0.01, 0.0005).length([0.8], seconds, 8) for seconds in (0.0, 0.001, 0.003, 0.02)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 5
    assert 0 < lengths[2] < lengths[1]
    assert lengths[-1] == 0
    assert gain(0.01, 0.0005).length([0.01], 0.0, 8) == 0
