"""How much memory the answers that run will want at once, and how much of it is believed to be there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.kv_admission import Demand, KvAdmission

demands = st.lists(
    st.builds(Demand, st.floats(0, 500), st.integers(1, 4), st.integers(1, 300).map(float)), min_size=1, max_size=12
)


def by_playing(all_of_them: list[Demand], block: int) -> float:
    """The most at any step, from step to step."""
    most = 0.0
    for step in range(302):
        here = [one for one in all_of_them if one.left >= step]
        most = max(most, sum(one.tokens + one.growth * (step + block / 2) for one in here))
    return most


@given(demands)
def test_the_peak_is_the_worst_step(all_of_them: list[Demand]) -> None:
    assert KvAdmission(10, 64).peak(all_of_them) == pytest.approx(by_playing(all_of_them, 64))


def test_answers_that_end_make_room_for_those_that_grow() -> None:
    memory = KvAdmission(total_blocks=10, block_tokens=64)  # 640 tokens
    ends_soon, grows = Demand(300, 1, 10), Demand(200, 1, 300)
    assert memory.fits(grows, [ends_soon])  # 300 + 200 + 20 and 500 + 32, not 300 + 500
    assert not memory.fits(Demand(300, 1, 300), [Demand(300, 1, 300)])


def test_alone_or_unknown_everything_fits() -> None:
    assert KvAdmission(1, 64).fits(Demand(9999, 1, 9999), [])
    assert KvAdmission(0, 64).fits(Demand(9999, 1, 9999), [Demand(9999, 1, 9999)])


def held_back(memory: KvAdmission) -> None:
    assert not memory.fits(Demand(1e6, 1, 1), [Demand(1, 1, 1)])


def test_the_bound_follows_what_is_recomputed() -> None:
    memory = KvAdmission(10, 64)
    held_back(memory)
    memory.observe(5000, 10)
    assert memory.overbook == pytest.approx(1.02)
    memory.observe(10_000, 100)  # 1.8 % of 5000
    assert memory.overbook == pytest.approx(1.02 * 0.8)
    memory.observe(11_000, 900)  # too few tokens to judge
    assert memory.overbook == pytest.approx(1.02 * 0.8)


def test_it_stays_where_nothing_was_held_back_and_within_its_limits() -> None:
    memory = KvAdmission(10, 64)
    memory.observe(5000, 0)
    assert memory.overbook == 1.0
    for turn in range(2, 200):
        held_back(memory)
        memory.observe(5000 * turn, 0)
    assert memory.overbook == 2.0
    for turn in range(200, 300):
        memory.observe(5000 * turn, 4000 * (turn - 199))
    assert memory.overbook == 0.5
