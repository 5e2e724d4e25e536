"""The classics: each takes back one idea, over the real scheduler."""

from __future__ import annotations

import pytest

from tailrace.plan.baselines import Classic
from tailrace.plan.clients import Habits
from tailrace.plan.record import Record
from tests.plan.support import EXACT, config, mixed, row, simulated

A, B, C, D, E = EXACT.coefficients
STATIC, DYNAMIC = Classic.of(["static"], 0.5), Classic.of(["dynamic"], 0.5)


def start(record: Record) -> float:
    """When its prompt began to be computed."""
    assert record.queue is not None
    return record.arrival + record.queue


def test_names() -> None:
    assert not Classic.of([], 0.5).schedules
    assert not Classic.of(["fcfs"], 0.5).schedules
    assert Classic.of(["static", "reserve"], 0.5) == Classic(0.0, False, True)
    assert Classic.of(["dynamic", "unchunked"], 0.5) == Classic(0.5, True, False)


def test_a_static_batch_runs_to_its_end() -> None:
    rows = [row(0.0, 64, 4), row(0.05, 64, 200), row(0.06, 64, 4)]
    first, second, third = simulated(rows, classic=STATIC).records
    assert start(second) == pytest.approx(first.end, abs=1e-5)
    assert start(third) == pytest.approx(first.end, abs=1e-5)
    late = simulated([*rows, row(1.0, 64, 4)], classic=STATIC).records[3]
    assert late.arrival < second.end < start(late) + 1e-5  # type: ignore[operator]
    continuous = simulated([*rows, row(1.0, 64, 4)]).records[3]
    assert continuous.e2e < late.e2e / 5  # type: ignore[operator]


def test_a_batch_that_is_not_full_is_waited_for() -> None:
    first, second = simulated([row(0.0, 64, 4), row(0.3, 64, 4)], classic=DYNAMIC).records
    assert start(first) == pytest.approx(0.5)
    assert start(second) == pytest.approx(0.5)


def test_who_comes_while_a_waited_for_batch_runs_is_in_the_next() -> None:
    rows = [row(0.0, 64, 40), row(0.7, 64, 4), row(0.9, 64, 4)]
    first, second, third = simulated(rows, classic=DYNAMIC).records
    assert start(first) == pytest.approx(0.5)
    assert start(second) == start(third) == pytest.approx(max(first.end, 0.0) + 0.5, abs=0.01)  # type: ignore[type-var]


def test_a_full_batch_starts_at_once() -> None:
    rows = [row(0.0, 64, 4), row(0.1, 64, 4), row(0.2, 64, 4)]
    first, second, third = simulated(rows, classic=DYNAMIC, config=config({"max_sequences": 2})).records
    assert start(first) == start(second) == pytest.approx(0.1)
    assert start(third) > first.end  # type: ignore[operator]


def test_without_chunks_a_long_prompt_stalls_everyone() -> None:
    rows = [row(0.0, 64, 60), row(0.3, 4000, 4)]
    chunked, whole = simulated(rows), simulated(rows, classic=Classic.of(["unchunked"], 0.0))
    stall = A + B * 4000 + E * 4000 * 2000
    assert whole.records[0].worst_gap == pytest.approx(stall + C, rel=0.05)
    assert chunked.records[0].worst_gap < stall / 4  # type: ignore[operator]


def test_reserving_the_maximum_runs_fewer_at_once() -> None:
    rows = [row(0.0, 60, 40) for _ in range(8)]
    fields = {"kv_tokens": 64 * 16, "config": config({"prefix_cache": False})}
    habits = Habits(max_tokens=64 * 8 - 60)  # half of the memory for each
    paged = simulated(rows, habits=habits, **fields)
    reserved = simulated(rows, habits=habits, classic=Classic.of(["reserve"], 0.0), **fields)
    assert reserved.seconds > 1.25 * paged.seconds
    assert all(record.ok for record in reserved.records)
    assert reserved.stats.preemptions == 0


@pytest.mark.parametrize("names", [["static"], ["dynamic"], ["unchunked"], ["reserve"], ["static", "reserve"]])
def test_all_answer_everything(names: list[str]) -> None:
    outcome = simulated(mixed(60, gap=0.1), classic=Classic.of(names, 0.1), kv_tokens=8192)
    assert all(record.ok and record.made == record.output_tokens for record in outcome.records)
