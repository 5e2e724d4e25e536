"""Times that come on the injected clock; one timer, nothing polls."""

from __future__ import annotations

import asyncio

from tailrace.clock import ManualClock, SystemClock
from tailrace.control.expiry import Expiry


async def test_due_items_are_told_in_order_and_once() -> None:
    clock, told = ManualClock(), list[str]()
    expiry = Expiry(clock, told.append)
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        expiry.add(name, at)
    expiry.drop("b")
    expiry.due()
    assert told == []
    clock.advance(2.5)
    expiry.due()
    assert told == ["a"]
    clock.advance(1.0)
    expiry.due()
    assert (told, len(expiry)) == (["a", "c"], 0)


async def test_the_loops_timer_wakes_it() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    clock = SystemClock()
    expiry = Expiry(clock, told.set_result)
    expiry.add("late", clock.now() + 1000)
    expiry.add("soon", clock.now() + 0.01)
    assert await asyncio.wait_for(told, 120) == "soon"
    assert len(expiry) == 1
    expiry.drop("late")


async def test_a_name_may_come_again_with_another_time() -> None:
    clock, told = ManualClock(), list[str]()
    expiry = Expiry(clock, told.append)
    expiry.add("a", 1.0)
    expiry.drop("a")
    expiry.add("a", 5.0)
    clock.advance(2.0)
    expiry.due()
    assert told == []
    clock.advance(4.0)
    expiry.due()
    assert told == ["a"]


async def test_dropped_items_do_not_pile_up() -> None:
    expiry = Expiry(ManualClock(), lambda name: None)
    expiry.add("stays", 1e9)
    for number in range(5000):
        expiry.add(str(number), 1e6 + number)
        expiry.drop(str(number))
    assert len(expiry._heap) < 200
    expiry.drop("stays")
