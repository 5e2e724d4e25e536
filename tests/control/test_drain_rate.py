"""How fast requests leave: by the recent past, on the safe side, and by an earlier busy time at first."""

from __future__ import annotations

from math import sqrt

import pytest

from tailrace.control.drain_rate import DrainRate


def likely(requests: float) -> float:
    """Mean times in which so many have left, nine times in ten."""
    return requests + 1.28 * sqrt(requests)


def drained(count: int, every: float, tokens: int = 50) -> DrainRate:
    """Busy from 0 on; one leaves at each `every`."""
    rate = DrainRate()
    rate.busy(0.0)
    for number in range(1, count + 1):
        rate.completed(number * every, tokens)
    return rate


def test_it_is_measured() -> None:
    rate = drained(9, 1.0)
    assert rate.seconds_for(1, 0, now=10.0) == pytest.approx(likely(1))  # 9 done and one assumed, in 10 s
    assert rate.seconds_for(3, 0, now=10.0) == pytest.approx(likely(3))
    assert rate.seconds_for(0, 90, now=10.0) == pytest.approx(likely(2))  # 450 tokens in 10 s
    assert rate.seconds_for(0, 0, now=10.0) == 0.0


def test_it_falls_while_nothing_completes() -> None:
    rate = drained(0, 1.0)
    estimates = [rate.seconds_for(1, 0, now) for now in (0.1, 1.0, 20.0, 500.0)]
    assert estimates == [pytest.approx(seconds * likely(1)) for seconds in (0.1, 1.0, 20.0, 30.0)]


def test_it_forgets_what_is_long_past() -> None:
    rate = drained(1, 1.0)
    assert rate.seconds_for(1, 0, now=31.0) == pytest.approx(15.0 * likely(1))
    assert rate.seconds_for(1, 0, now=31.5) == pytest.approx(30.0 * likely(1))


def test_a_burst_begins_with_the_pace_of_the_one_before() -> None:
    """Ten that left in 20 s count for eight in 16 s."""
    rate = drained(10, 2.0)
    rate.idle()
    rate.busy(100.0)
    assert rate.seconds_for(1, 0, now=100.0) == pytest.approx(2.0 * likely(1))
    assert rate.seconds_for(0, 100, now=100.0) == pytest.approx(2.0 * likely(2))
    assert rate.seconds_for(1, 0, now=104.0) == pytest.approx(20.0 / 8 * likely(1))  # nothing of this one has left yet
    for at in (104.0, 105.0):
        rate.completed(at, 50)
    assert rate.seconds_for(1, 0, now=105.0) == pytest.approx(21.0 / 10 * likely(1))
    rate.idle()
    rate.idle()  # nothing more is learned
    rate.busy(200.0)
    assert rate.seconds_for(1, 0, now=200.0) == pytest.approx(2.1 * likely(1))


def test_a_busy_time_without_an_end_teaches_nothing() -> None:
    rate = drained(0, 1.0)
    rate.idle()
    rate.busy(50.0)
    assert rate.seconds_for(1, 0, now=51.0) == pytest.approx(likely(1))
