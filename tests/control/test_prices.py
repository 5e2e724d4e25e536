"""Money is exact: what a request costs is the sum of its parts, rounded once."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.prices import Counts, cost
from tailrace.policy import Price

UNIT = 10**9  # of a price


def test_a_request_costs_the_sum_of_its_parts() -> None:
    price = Price(device_second=UNIT // 2, prompt_million=UNIT, cached_million=UNIT // 10, output_million=4 * UNIT)
    # 2 s of device time, 1000 new prompt tokens, 500 cached ones, 250 of the answer
    assert cost(price, Counts(2_000_000, 1000, 500, 250)) == 1_000_000 + 1000 + 50 + 1000


def test_cached_tokens_are_free_unless_they_have_a_price() -> None:
    assert cost(Price(prompt_million=UNIT), Counts(0, 10, 90, 0)) == 10
    assert cost(Price(prompt_million=UNIT, cached_million=UNIT), Counts(0, 10, 90, 0)) == 100


def test_it_is_rounded_once_and_a_half_goes_up() -> None:
    fifth = Price(prompt_million=UNIT // 5, cached_million=UNIT // 5, output_million=UNIT // 10)
    assert cost(fifth, Counts(0, 1, 0, 0)) == 0  # 0.2 millionths
    assert cost(fifth, Counts(0, 1, 1, 1)) == 1  # 0.5: three parts, each of which alone would be none
    assert cost(fifth, Counts(0, 2, 5, 1)) == 2  # 1.5
    assert cost(fifth, Counts(0, 1, 1, 0)) == 0  # 0.4


PRICES = st.integers(0, 10**15)
COUNTS = st.integers(0, 2**40)


@given(st.tuples(PRICES, PRICES, PRICES, PRICES), st.tuples(COUNTS, COUNTS, COUNTS, COUNTS))
def test_it_is_never_off_by_more_than_half_a_millionth(
    prices: tuple[int, int, int, int], counts: tuple[int, int, int, int]
) -> None:
    exact = sum(Fraction(count, 10**6) * Fraction(price, UNIT) for price, count in zip(prices, counts, strict=True))
    found = cost(Price(*prices), Counts(*counts))
    assert Fraction(-1, 2) < found - exact * 10**6 <= Fraction(1, 2)
