"""Places for who was refused: each its own moment, kept from newcomers, and nobody waits for who does not come."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.control.admission import Admit, Forecast, Reject, Terms
from tailrace.control.promises import Promises
from tailrace.types import Tokens

TERMS = Terms(ttft=10.0)
LATE = Reject("deadline_unattainable", 503, "ttft", 13.0, 10.0, retry_after=3.0)
IN_TIME = Forecast(1.0, 7.0)


def prompt(number: int) -> Tokens:
    return np.full(4, number, np.int32)


def straight(seconds: float) -> float:
    """No jitter."""
    return seconds


def refused(promises: Promises, number: int, now: float, tenant: str = "acme") -> float:
    """Of a request that would keep the machine for half a second: when it should come, on the clock."""
    return now + promises.visit(tenant, prompt(number), now).come_back(LATE, 0.5, straight)


def expects(promises: Promises, number: int, now: float, tenant: str = "acme") -> float:
    return promises.visit(tenant, prompt(number), now).forecast(IN_TIME, TERMS).ttft


def test_each_is_told_a_moment_behind_the_one_before() -> None:
    promises = Promises()
    dues = [refused(promises, number, 100.0) for number in range(3)]
    assert dues == [104.0, 104.5, 105.0]  # 3 s late and a tenth of the bound; then as long as each will take
    assert refused(promises, 7, 100.0, "other") == 104.0  # tenants are apart


def test_newcomers_leave_room_for_those_that_are_due() -> None:
    promises = Promises()
    for number in range(5):
        refused(promises, number, 100.0)
    assert expects(promises, 9, 93.0) == 7.0  # nobody comes that soon
    assert expects(promises, 9, 104.0) == pytest.approx(7.0 + 0.5 + 1.0)  # they come as fast as the machine works
    assert expects(promises, 9, 105.5) == pytest.approx(7.0 + 2.0 + 1.0)  # four are overdue
    assert expects(promises, 9, 105.5, "other") == 7.0
    assert promises.visit("acme", prompt(9), 105.5).forecast(IN_TIME, Terms()) == IN_TIME


def test_who_was_told_to_come_finds_its_place_once() -> None:
    promises = Promises()
    due = refused(promises, 1, 100.0)
    refused(promises, 2, 100.0)
    assert expects(promises, 1, due) == 7.0
    promises.visit("acme", prompt(1), due).over(Admit("starts_now"))
    assert expects(promises, 1, due) > 7.0  # the same text again is somebody else's


def test_who_comes_early_or_in_vain_keeps_its_turn() -> None:
    promises = Promises()
    for number in range(20):
        refused(promises, number, 100.0)
    assert refused(promises, 19, 105.0) == 113.5  # as it was told
    assert expects(promises, 19, 105.0) > 7.0
    assert refused(promises, 1, 105.0) == 109.0  # it was due at 104.5 and is late by 3 s again


def test_nobody_waits_for_who_does_not_come() -> None:
    promises = Promises()
    for number in range(200):
        refused(promises, number, 100.0)
    assert refused(promises, 999, 110.0) == pytest.approx(204.0 - 8 * 0.5)  # eight did not come
    assert expects(promises, 999, 150.0) <= 12.0  # half of the bound is kept at most
    assert expects(promises, 999, 250.0) == 7.0
    assert refused(promises, 1, 250.0) == 254.0
