"""Who may wait, and when to come back."""

from __future__ import annotations

import pytest

from tailrace.config import ControlConfig
from tailrace.control.admission import Decision, Occupancy, Verdict, at_the_door, into_the_queue, refusal
from tailrace.control.drain_rate import DrainRate
from tailrace.errors import QueueFull, Unavailable

CONFIG = ControlConfig(max_waiting_requests=3, max_waiting_tokens=100)
ADMIT, REJECT = Verdict.ADMIT, Verdict.REJECT


def there(held: int = 0, queued: int = 0, tokens: int = 0, room: int = 0, draining: bool = False) -> Occupancy:
    return Occupancy(held, queued, tokens, room, draining)


@pytest.mark.parametrize(
    ("arriving", "occupancy", "expected"),
    [
        (1, there(), Decision(ADMIT, "place_free")),
        (1, there(queued=2), Decision(ADMIT, "place_free")),
        (1, there(queued=3), Decision(REJECT, "queue_full", lacking_requests=1)),
        (1, there(held=1, queued=2), Decision(REJECT, "queue_full", lacking_requests=1)),
        (3, there(queued=1), Decision(REJECT, "queue_full", lacking_requests=1)),
        (1, there(held=3, room=2), Decision(ADMIT, "place_free")),  # those at the door will start
        (1, there(held=5, room=2), Decision(REJECT, "queue_full", lacking_requests=1)),
        (50, there(room=1), Decision(ADMIT, "place_free")),  # alone: it would be refused for ever
        (1, there(queued=1, tokens=100), Decision(REJECT, "queue_tokens_full", lacking_tokens=1)),
        (1, there(room=9, draining=True), Decision(REJECT, "draining")),
    ],
)
def test_the_door(arriving: int, occupancy: Occupancy, expected: Decision) -> None:
    assert at_the_door(arriving, occupancy, CONFIG) == expected


@pytest.mark.parametrize(
    ("tokens", "fits", "occupancy", "expected"),
    [
        (500, True, there(), Decision(ADMIT, "starts_now")),
        (500, False, there(room=1), Decision(ADMIT, "waits")),  # larger than the bound, and nothing before it
        (60, True, there(queued=1, tokens=40), Decision(ADMIT, "waits")),
        (61, True, there(queued=1, tokens=40), Decision(REJECT, "queue_tokens_full", lacking_tokens=1)),
        (1, True, there(room=4, draining=True), Decision(REJECT, "draining")),
    ],
)
def test_the_queue(tokens: int, fits: bool, occupancy: Occupancy, expected: Decision) -> None:
    assert into_the_queue(tokens, fits, occupancy, CONFIG) == expected


def test_refusals_say_what_is_full() -> None:
    full = refusal(Decision(REJECT, "queue_full", 1), there(queued=3), CONFIG, 2.25)
    assert isinstance(full, QueueFull)
    assert (full.status, full.code, full.retry_after) == (429, "queue_full", 2.25)
    assert full.body()["error"] == {
        "message": "3 requests are waiting already; at most 3 may. Try again after 2.2 s",
        "type": "rate_limit_error", "param": None, "code": "queue_full", "retry_after_ms": 2250,
    }  # fmt: skip
    tokens = refusal(Decision(REJECT, "queue_tokens_full", 0, 1), there(queued=1, tokens=100), CONFIG, 1)
    assert "100 prompt tokens" in tokens.message
    stopping = refusal(Decision(REJECT, "draining"), there(draining=True), CONFIG, 5)
    assert isinstance(stopping, Unavailable)
    assert stopping.status == 503


def test_drain_rate_is_measured() -> None:
    rate = DrainRate()
    rate.busy(0.0)
    for second in range(1, 10):
        rate.completed(float(second), prompt_tokens=50)
    assert rate.seconds_for(1, 0, now=10.0) == pytest.approx(1.0)  # 9 done and one assumed, in 10 s
    assert rate.seconds_for(3, 0, now=10.0) == pytest.approx(3.0)
    assert rate.seconds_for(0, 90, now=10.0) == pytest.approx(2.0)  # 450 tokens in 10 s


def test_drain_rate_falls_while_nothing_completes() -> None:
    rate = DrainRate()
    rate.busy(0.0)
    estimates = [rate.seconds_for(1, 0, now) for now in (0.1, 1.0, 20.0, 500.0)]
    assert estimates == [0.1, 1.0, 20.0, 30.0]


def test_drain_rate_forgets_what_is_long_past() -> None:
    rate = DrainRate()
    rate.busy(0.0)
    rate.completed(1.0, 1)
    assert rate.seconds_for(1, 0, now=31.0) == pytest.approx(15.0)
    assert rate.seconds_for(1, 0, now=31.5) == pytest.approx(30.0)
    rate.idle()
    rate.busy(40.0)
    assert rate.seconds_for(1, 0, now=41.0) == pytest.approx(1.0)
