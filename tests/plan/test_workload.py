"""Rows to requests: time, lengths, windows, and text that is equal where the trace says so."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.errors import ConfigError
from tailrace.plan.workload import Arrival, Scale, arrivals, request, tokens
from tailrace.traces import TraceRow
from tests.plan.support import row

ROWS = [row(0.0, 100), row(10.0, 200), row(20.0, 300), row(30.0, 400)]


def times(scale: Scale, rows: list[TraceRow] = ROWS) -> list[tuple[float, int]]:
    return [(found.at, found.row.input_tokens) for found in arrivals(rows, scale, seed=1)]


def test_as_recorded() -> None:
    assert times(Scale()) == [(0.0, 100), (10.0, 200), (20.0, 300), (30.0, 400)]


def test_rows_out_of_order_arrive_in_order() -> None:
    assert times(Scale(), ROWS[::-1]) == times(Scale())


def test_twice_as_many_in_a_second_at_half_the_length() -> None:
    assert times(Scale(rate=2.0, length=0.5)) == [(0.0, 50), (5.0, 100), (10.0, 150), (15.0, 200)]


def test_a_window_begins_at_zero() -> None:
    assert times(Scale(window=(5.0, 25.0))) == [(5.0, 200), (15.0, 300)]
    assert times(Scale(window=(10.0, 30.0), rate=10.0)) == [(0.0, 200), (1.0, 300)]


def test_bounds_come_after_scaling() -> None:
    (found,) = arrivals([row(0.0, 1000, 500)], Scale(length=0.5, max_input=300, max_output=100), seed=1)
    assert (found.row.input_tokens, found.output) == (300, 100)
    assert len(times(Scale(limit=2))) == 2


def test_an_empty_window_says_where_the_trace_ends() -> None:
    with pytest.raises(ConfigError, match=r"--window 40-50: nothing arrives then; the trace ends at 30.0 s"):
        times(Scale(window=(40.0, 50.0)))


def test_lengths_get_arrivals_by_seed() -> None:
    rows = [row(None) for _ in range(400)]
    first, again = times(Scale(poisson=4.0), rows), times(Scale(poisson=4.0), rows)
    assert first == again
    assert first[0][0] == 0.0
    assert first[-1][0] == pytest.approx(100.0, rel=0.2)
    with pytest.raises(ConfigError, match="--rate"):
        times(Scale(), rows)


def test_text_is_shared_as_the_trace_says() -> None:
    first = tokens(Arrival(0, 0.0, row(0.0, 1100, blocks=(7, 8))))
    second = tokens(Arrival(1, 0.0, row(0.0, 1300, blocks=(7, 9))))
    again = tokens(Arrival(2, 0.0, row(0.0, 1024, blocks=(7, 8))))
    assert (len(first), len(second), len(again)) == (1100, 1300, 1024)
    assert np.array_equal(first[:512], second[:512])
    assert not np.isin(first[512:], second).any()
    assert np.array_equal(first[:1024], again)


def test_a_block_that_does_not_fit_is_own_text() -> None:
    short = tokens(Arrival(3, 0.0, row(0.0, 500, blocks=(7,))))
    whole = tokens(Arrival(0, 0.0, row(0.0, 512, blocks=(7,))))
    assert not np.isin(short, whole).any()


def test_the_answer_is_hidden() -> None:
    made = request(Arrival(5, 0.0, row(0.0, 64, 33)), max_tokens=512)
    assert made.stop.max_tokens == 512
    assert not hasattr(made, "output")
    assert made.prompt.dtype == np.int32
