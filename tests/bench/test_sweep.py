"""The search for the knee, on servers that are formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bench.sweep import Level, Sweep


def sweep(server, wanted: float | None, *, start: float = 1, limit: float = 1024, whole: bool = True) -> Sweep:  # type: ignore[no-untyped-def]
    async def measure(load: float) -> Level:
        assert load not in made.levels, "no load is measured twice"
        return server(load)

    made = Sweep(measure, start, limit, whole, wanted)
    return made


def meets_up_to(capacity: float):  # type: ignore[no-untyped-def]
    return lambda load: Level(load, load, 1.0 if load <= capacity else 0.5)


@pytest.mark.parametrize(("capacity", "knee"), [(11, 11), (8, 8), (13.5, 13), (1, 1), (100, 96)])
async def test_highest_load_that_meets_the_slo(capacity: float, knee: float) -> None:
    found = sweep(meets_up_to(capacity), 0.99)
    await found.run()
    assert found.knee() == Level(knee, knee, 1.0)
    assert not found.limited


async def test_doubling_then_bisecting() -> None:
    found = sweep(meets_up_to(11), 0.99)
    await found.run()
    assert list(found.levels) == [1, 2, 4, 8, 16, 12, 10, 11]


async def test_no_load_is_good() -> None:
    found = sweep(meets_up_to(0.5), 0.99)
    await found.run()
    assert found.knee() is None
    assert list(found.levels) == [1]


async def test_the_limit_is_measured_and_said() -> None:
    found = sweep(meets_up_to(1e9), 0.99, start=3, limit=20)
    await found.run()
    assert list(found.levels) == [3, 6, 12, 20]
    assert found.limited
    assert found.knee() == Level(20, 20, 1.0)


@pytest.mark.parametrize("full_at", [6, 8, 20])
async def test_lowest_load_with_full_throughput(full_at: int) -> None:
    found = sweep(lambda load: Level(load, 100.0 * min(load, full_at)), None)
    await found.run()
    knee = found.knee()
    assert knee is not None
    assert 0.95 * full_at <= knee.load <= full_at + 1


async def test_rates_are_halved_as_real_numbers() -> None:
    found = sweep(meets_up_to(2.6), 1.0, start=1.0, whole=False)
    await found.run()
    assert list(found.levels) == [1, 2, 4, 3, 2.5, 2.75]
    assert found.knee() == Level(2.5, 2.5, 1.0)


@given(st.floats(1, 900), st.booleans())
async def test_the_knee_is_always_a_good_load_below_the_first_bad_one(capacity: float, whole: bool) -> None:
    found = sweep(meets_up_to(capacity), 0.99, whole=whole)
    await found.run()
    knee = found.knee()
    assert knee is not None
    assert knee.load <= capacity
    assert knee.load >= 0.85 * capacity - 1
    assert len(found.levels) <= 14


async def test_what_was_measured_before_a_stop_is_kept() -> None:
    def server(load: float) -> Level:
        if load > 4:
            raise KeyboardInterrupt
        return Level(load, load, 1.0)

    found = sweep(server, 0.99)
    with pytest.raises(KeyboardInterrupt):
        await found.run()
    assert list(found.levels) == [1, 2, 4]
