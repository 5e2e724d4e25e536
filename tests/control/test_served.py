"""How evenly tenants are served."""

from __future__ import annotations

import pytest

from tailrace.control.served import MEMORY, Served

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 1.0}


def index(served: Served, now: float = 0.0) -> float:
    return served.index(WEIGHTS.__getitem__, now)


def test_nobody_and_one_alone_are_served_evenly() -> None:
    served = Served()
    assert index(served) == 1.0
    served.add("a", 2.0, 0.0)
    assert index(served) == pytest.approx(1.0)


def test_shares_by_weight_are_even() -> None:
    served = Served()
    served.add("a", 1.0, 0.0)
    served.add("b", 3.0, 0.0)
    assert index(served) == pytest.approx(1.0)
    served.add("a", 1.0, 0.0)
    assert index(served) == pytest.approx(9 / 10)  # (2 + 1)^2 / (2 * (4 + 1))


def test_what_was_long_ago_does_not_count() -> None:
    served = Served()
    served.add("a", 1000.0, 0.0)
    served.add("c", 1.0, 30 * MEMORY)
    assert index(served, 30 * MEMORY) == pytest.approx(1.0)
    assert served.lately("c", 31 * MEMORY) == pytest.approx(0.36788, rel=1e-4)
