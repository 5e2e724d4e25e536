"""Who may wait, and when to come back."""

from __future__ import annotations

import pytest

from tailrace.control.admission import (
    Admit,
    AsJob,
    Decision,
    Forecast,
    Offer,
    Reject,
    Standing,
    Terms,
    There,
    Wait,
    at_the_door,
    into_the_queue,
    refusal,
)
from tailrace.errors import QueueFull, Unavailable

FREE = Admit("place_free")


def there(requests: int = 0, tokens: int = 0, room: int = 0, draining: bool = False, *more: Standing) -> There:
    return There((Standing("all", requests, tokens, 3, 100), *more), room, draining)


def full(requests: int, excess: int = 1) -> Reject:
    return Reject("queue_full", 429, "all", requests, 3, lacking_requests=excess)


def too_long(tokens: int, excess: int) -> Reject:
    return Reject("queue_tokens_full", 429, "all", tokens, 100, lacking_tokens=excess)


@pytest.mark.parametrize(
    ("arriving", "tokens", "present", "expected"),
    [
        (1, 0, there(), FREE),
        (1, 0, there(2), FREE),
        (1, 0, there(3), full(3)),
        (3, 0, there(1), full(1)),
        (1, 0, there(3, room=2), FREE),  # those at the door will start
        (1, 0, there(5, room=2), full(5)),
        (50, 0, there(room=1), FREE),  # alone: it would be refused for ever
        (1, 0, there(1, 100), too_long(100, 1)),
        (1, 30, there(1, 80), too_long(80, 10)),
        (1, 500, there(), FREE),  # nothing before it: how long it may be is not the queue's to say
        (1, 0, there(room=9, draining=True), Reject("draining", 503)),
    ],
)
def test_the_door(arriving: int, tokens: int, present: There, expected: Decision) -> None:
    assert at_the_door(arriving, tokens, present) == expected


def test_a_tenant_that_fills_its_part_leaves_the_others_theirs() -> None:
    mine = Standing("tenant acme", 2, 5, 2, 50)
    assert at_the_door(1, 0, there(2, 5, 0, False, mine)) == Reject(
        "queue_full", 429, "tenant acme", 2, 2, lacking_requests=1
    )
    assert at_the_door(1, 0, there(2, 5, 0, False, Standing("tenant other", 0, 0, 1, 50))) == FREE


@pytest.mark.parametrize(
    ("offer", "present", "expected"),
    [
        (Offer(500, True), there(), Admit("starts_now")),
        (Offer(500, False), there(room=1), Wait("no_room")),  # larger than the bound, and nothing before it
        (Offer(60, False), there(1, 40), Wait("no_room")),
        (Offer(61, False), there(1, 40), too_long(40, 1)),
        (Offer(1, False), there(3, 3), Wait("no_room")),  # its place was taken at the door
        (Offer(1, True), there(0, 0, 4, True), Reject("draining", 503)),
    ],
)
def test_the_queue(offer: Offer, present: There, expected: Decision) -> None:
    assert into_the_queue(offer, present, None, Terms()) == expected


def test_a_class_has_bounds_of_its_own() -> None:
    long = Standing("class long", 2, 90, 2, 100, at_door=False)
    assert into_the_queue(Offer(1, False), there(2, 90, 0, False, long), None, Terms()) == Reject(
        "queue_full", 429, "class long", 2, 2, lacking_requests=1
    )
    assert into_the_queue(Offer(1, True), there(2, 90, 1, False, long), None, Terms()) == Admit("starts_now")


@pytest.mark.parametrize(
    ("forecast", "terms", "expected"),
    [
        (Forecast(1.0, 2.0), Terms(), Wait("no_room", 2.0)),
        (Forecast(1.0, 2.0), Terms(ttft=2.0, queue=1.0), Wait("no_room", 2.0)),
        (Forecast(1.0, 2.5), Terms(ttft=2.0), Reject("deadline_unattainable", 503, "ttft", 2.5, 2.0, retry_after=0.5)),
        (Forecast(9.0, 9.5), Terms(queue=5.0), Reject("queue_too_long", 503, "all", 9.0, 5.0, retry_after=4.0)),
        (
            Forecast(9.0, 9.5),
            Terms(queue=5.0, as_job=True),
            AsJob(Reject("queue_too_long", 503, "all", 9.0, 5.0, retry_after=4.0)),
        ),
        (None, Terms(ttft=0.001), Wait("no_room")),  # nothing is known: nothing is refused for it
    ],
)
def test_what_cannot_be_met_is_told_at_once(forecast: Forecast | None, terms: Terms, expected: Decision) -> None:
    assert into_the_queue(Offer(10, False), there(1, 10), forecast, terms) == expected


def test_a_deadline_shorter_than_the_prefill_is_told_though_there_is_room() -> None:
    decision = into_the_queue(Offer(10, True), there(), Forecast(0.0, 3.0), Terms(ttft=1.0))
    assert (decision.reason, isinstance(decision, Reject)) == ("deadline_unattainable", True)


def test_refusals_say_what_is_full() -> None:
    error = refusal(full(3).after(2.25))
    assert isinstance(error, QueueFull)
    assert (error.status, error.code, error.retry_after) == (429, "queue_full", 2.25)
    assert error.body()["error"] == {
        "message": "3 requests are waiting already; at most 3 may. Try again after 2.2 s",
        "type": "rate_limit_error", "param": None, "code": "queue_full", "retry_after_ms": 2250,
        "detail": {"scope": "all", "value": 3, "limit": 3},
    }  # fmt: skip
    tokens = refusal(Reject("queue_tokens_full", 429, "tenant acme", 100, 90).after(1.0))
    assert "100 prompt tokens of tenant acme are waiting" in tokens.message
    late = refusal(Reject("deadline_unattainable", 503, "ttft", 2.5, 2.0, retry_after=0.5))
    assert isinstance(late, Unavailable)
    assert "2.50 s" in late.message
    assert late.detail == {"scope": "ttft", "value": 2.5, "limit": 2.0}
    stopping = refusal(Reject("draining", 503).after(5.0))
    assert isinstance(stopping, Unavailable)
    assert (stopping.status, stopping.detail) == (503, {})
