"""Waiting moves the clock and nothing else."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.clock import ManualClock
from tailrace.plan.virtual import run


def test_sleeping_takes_no_time_and_moves_the_clock() -> None:
    clock, seen = ManualClock(), []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, round(clock.now(), 6)))

    async def main() -> str:
        await asyncio.gather(sleeper("late", 86_400.0), sleeper("early", 3600.0), sleeper("now", 0.0))
        return "done"

    started = time.monotonic()
    assert run(clock, main()) == "done"
    assert time.monotonic() - started < 3600
    assert seen == [("now", 0.0), ("early", 3600.0), ("late", 86_400.0)]


def test_timeouts_are_on_the_clock_too() -> None:
    clock = ManualClock(now=5.0)

    async def main() -> None:
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(clock, main())
    assert clock.now() == pytest.approx(7.5)


def test_a_callback_that_fails_ends_the_run() -> None:
    def broken() -> None:
        raise ZeroDivisionError("in a callback")

    async def main() -> None:
        asyncio.get_running_loop().call_later(5.0, broken)
        await asyncio.sleep(10.0)

    clock = ManualClock()
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        run(clock, main())
    assert clock.now() == pytest.approx(5.0)


def test_waiting_for_nothing_is_an_error_and_no_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing that has a time"):
        run(ManualClock(), main())
