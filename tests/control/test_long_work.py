"""When long requests should have ended."""

from __future__ import annotations

from tailrace.control.long_work import LongWork
from tailrace.types import StepCosts
from tests.control.tickets import estimate

COSTS = StepCosts(step=0.01)  # and answers of ten tokens


def test_twice_the_time_alone_behind_those_that_are_there() -> None:
    work = LongWork(COSTS)
    assert work.came("a", estimate(prefill=10.0, decode=0.9), 100.0) == 100.0 + 2 * 11.0
    assert work.came("b", estimate(prefill=2.9), 101.0) == 101.0 + 2 * 3.0 + 11.0
    work.ended("a")
    work.ended("a")
    work.ended("nobody")
    assert work.came("c", estimate(prefill=0.9), 102.0) == 102.0 + 2 * 1.0 + 3.0
