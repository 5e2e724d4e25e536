"""When a refused caller should come back: by its own pace, after those who were refused before it."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from tailrace.control.admission import Reject
from tailrace.control.come_back import ComeBack

FULL = Reject("queue_full", 429, "tenant acme", 5, 5, lacking_requests=1)
TENANT = ("all", "tenant acme")


class Straight(random.Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def likely(requests: float) -> float:
    """Mean times in which so many have left, nine times in ten."""
    return requests + 1.28 * sqrt(requests)


def served(come_back: ComeBack, scopes: tuple[str, ...], count: int, every: float) -> float:
    """Requests that leave at a steady pace; returns the time after them."""
    come_back.busy(scopes, 0.0)
    for number in range(1, count + 1):
        come_back.completed(scopes, number * every, 10)
    return count * every


def test_each_refused_one_is_told_a_later_place() -> None:
    come_back = ComeBack(Straight())
    now = served(come_back, TENANT, 9, 1.0)
    waits = [come_back.seconds(FULL, "tenant acme", now) for _ in range(4)]
    assert waits == [pytest.approx(0.9 * likely(i + 1)) for i in range(4)]
    come_back.completed(TENANT, now + 1.0, 10)  # one has left: the first of them may have its place
    assert come_back.seconds(FULL, "tenant acme", now + 1.0) == pytest.approx(10 / 11 * likely(4))


def test_a_tenant_waits_by_its_own_pace_and_not_by_the_others() -> None:
    come_back = ComeBack(Straight())
    served(come_back, ("all", "tenant quick"), 20, 0.5)
    now = served(come_back, TENANT, 4, 2.5)
    assert come_back.seconds(FULL, "tenant acme", now) == pytest.approx(2.0 * likely(1))
    other = Reject("queue_full", 429, "tenant quick", 5, 5, lacking_requests=1)
    assert come_back.seconds(other, "tenant quick", now) == pytest.approx(10 / 21 * likely(1))
    everyone = Reject("queue_full", 429, "all", 5, 5, lacking_requests=1)
    assert come_back.seconds(everyone, "tenant acme", now) == pytest.approx(10 / 25 * likely(1))


def test_tokens_count_where_tokens_are_lacking() -> None:
    come_back = ComeBack(Straight())
    now = served(come_back, TENANT, 10, 1.0)
    lacking = Reject("queue_tokens_full", 429, "tenant acme", 100, 90, lacking_tokens=50)
    assert [come_back.seconds(lacking, "tenant acme", now) for _ in range(2)] == [
        pytest.approx(10 / 11 * likely(5.5)),  # requests of 100 / 11 tokens, the assumed one's among them
        pytest.approx(10 / 11 * likely(11)),
    ]


def test_when_nothing_is_left_to_do_promises_are_forgotten() -> None:
    come_back = ComeBack(Straight())
    now = served(come_back, TENANT, 9, 1.0)
    for _ in range(50):
        come_back.seconds(FULL, "tenant acme", now)
    come_back.idle()
    come_back.busy(TENANT, now)
    assert come_back.seconds(FULL, "tenant acme", now + 0.5) == pytest.approx(8.5 / 8 * likely(1))  # at the old pace


def test_jitter_only_delays_and_repeats_by_its_seed() -> None:
    waits = [[ComeBack(random.Random(seed)).spread(10.0) for _ in range(3)] for seed in (1, 1, 2)]
    assert waits[0] == waits[1] != waits[2]
    assert all(10.0 <= wait <= 11.0 for row in waits for wait in row)


def test_nobody_is_sent_away_for_longer_than_ten_minutes() -> None:
    come_back = ComeBack(Straight())
    come_back.busy(TENANT, 0.0)
    waits = [come_back.seconds(FULL, "tenant acme", 100.0) for _ in range(50)]
    assert waits[0] == pytest.approx(30.0 * likely(1))
    assert max(waits) == 600.0
    assert come_back.spread(1e9) == 600.0
