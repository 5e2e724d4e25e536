"""Holds of requests on their way: waited for in order, extended, settled once."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.clock import ManualClock
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Change, Kind, Outcome
from tailrace.control.limits.limiter import Hold, Limiter
from tailrace.control.limits.memory import MemoryLimits
from tailrace.errors import Unavailable
from tests.serving import until


class Desk:
    def __init__(self, **caps: int) -> None:
        self.clock = ManualClock()
        self.account = Account("acme", Amounts(**caps))
        self.limiter = Limiter(MemoryLimits(self.clock))
        self.order: list[str] = []

    async def ask(self, name: str = "", **amounts: int) -> Hold:
        asked = Amounts(**amounts)
        exact = Amounts(asked.requests, asked.prompt_tokens)
        hold, outcome = await self.limiter.reserve((self.account,), Ask(exact, asked.minus(exact)))
        if outcome.kind is Kind.PARTIAL:
            self.limiter.wait(hold, lambda: self.order.append(name), lambda: self.order.append(f"not {name}"))
        return hold

    async def held(self) -> Amounts:
        return (await self.limiter.store.standing(self.account))[0]

    async def level(self) -> tuple[float, ...]:
        return (await self.limiter.store.standing(self.account))[1]


async def test_who_waits_for_slots_starts_in_order_when_they_are_given_back() -> None:
    desk = Desk(sequences=2)
    first = await desk.ask(sequences=2)
    for name in ("b", "c", "d"):
        await desk.ask(name, sequences=1)
    assert (desk.limiter.waiting, desk.order) == (3, [])
    first.settle(NOTHING)
    await until(lambda: desk.limiter.waiting == 1)
    assert desk.order == ["b", "c"]
    assert (await desk.held()).sequences == 2
    await desk.limiter.close()


async def test_nobody_overtakes_a_line_though_it_would_fit() -> None:
    desk = Desk(sequences=4)
    first = await desk.ask(sequences=3)
    await desk.ask("large", sequences=4)
    await desk.ask("small", sequences=1)
    assert desk.limiter.waiting == 2
    first.settle(NOTHING)
    await until(lambda: desk.order == ["large"])
    assert desk.limiter.waiting == 1
    await desk.limiter.close()


async def test_who_leaves_while_waiting_is_passed_over_and_holds_nothing() -> None:
    desk = Desk(sequences=1, requests=10)
    first = await desk.ask(requests=1, sequences=1)
    gone = await desk.ask("gone", requests=1, sequences=1)
    await desk.ask("stays", requests=1, sequences=1)
    gone.settle(Amounts(requests=1))
    gone.settle(Amounts(requests=5))
    first.settle(Amounts(requests=1))
    await until(lambda: desk.order == ["stays"])
    assert await desk.held() == Amounts(requests=1, sequences=1)
    assert (await desk.level())[0] == 2  # both were made; the second settling of `gone` changed nothing
    await desk.limiter.close()


async def test_what_is_made_beyond_the_hold_extends_it() -> None:
    desk = Desk(output_tokens=1000)
    hold = await desk.ask(output_tokens=100)
    hold.spend(Amounts(output_tokens=100))
    assert (await desk.held()).output_tokens == 100
    hold.spend(Amounts(output_tokens=101))
    assert ((await desk.held()).output_tokens, (await desk.level())[2]) == (25, 101)  # a quarter more than the hold
    hold.settle(Amounts(output_tokens=140))
    assert (await desk.held(), (await desk.level())[2]) == (NOTHING, 140)


async def test_a_line_moves_when_time_makes_room() -> None:
    desk = Desk(output_tokens=600)
    first = await desk.ask(output_tokens=600)
    first.settle(Amounts(output_tokens=590))
    await desk.ask("late", output_tokens=100)
    desk.clock.advance(8.0)
    desk.limiter.poke()
    await asyncio.sleep(0)
    assert desk.order == []
    desk.clock.advance(1.1)
    desk.limiter.poke()
    await until(lambda: desk.order == ["late"])
    await desk.limiter.close()


async def test_without_limits_nothing_is_held() -> None:
    limiter = Limiter(MemoryLimits(ManualClock()))
    hold, outcome = await limiter.reserve((), Ask(Amounts(requests=1), Amounts(output_tokens=5)))
    assert (outcome.kind, hold.granted) == (Kind.GRANTED, True)
    hold.start(NOTHING)
    hold.spend(Amounts(output_tokens=50))
    hold.settle(NOTHING)


class Failing(MemoryLimits):
    """A shared store that cannot be reached for a while, and takes its time."""

    shared = True
    failures = 0

    async def change(self, hold: str, accounts: tuple[Account, ...], change: Change) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise Unavailable("gone", code="limits_unavailable")
        await super().change(hold, accounts, change)

    async def reserve(self, hold: str, accounts: tuple[Account, ...], ask: Ask) -> Outcome:  # type: ignore[override]
        await asyncio.sleep(0)
        return await super().reserve(hold, accounts, ask)


async def test_a_settling_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.control.limits.limiter._TRY_AGAIN", 0.001)
    store = Failing(ManualClock())
    limiter, account = Limiter(store), Account("acme", Amounts(requests=5))
    hold, _ = await limiter.reserve((account,), Ask(Amounts(requests=1), NOTHING))
    store.failures = 3
    hold.settle(Amounts(requests=1))
    await limiter.close()
    assert await store.standing(account) == (NOTHING, (1.0, *[0.0] * 7))


async def test_a_stop_does_not_wait_for_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.control.limits.limiter._LAST_WORDS", 0.001)
    store = Failing(ManualClock())
    limiter, account = Limiter(store), Account("acme", Amounts(requests=5))
    hold, _ = await limiter.reserve((account,), Ask(Amounts(requests=1), NOTHING))
    store.failures = 10**9
    hold.settle(Amounts(requests=1))
    await limiter.close()  # and not after a lease
    assert not limiter._tasks


async def test_live_holds_are_renewed_and_ended_ones_are_not() -> None:
    clock = ManualClock()
    store = MemoryLimits(clock, lease=0.03)
    limiter, account = Limiter(store), Account("acme", Amounts(sequences=2))
    live, _ = await limiter.reserve((account,), Ask(NOTHING, Amounts(sequences=1)))
    lost, _ = await limiter.reserve((account,), Ask(NOTHING, Amounts(sequences=1)))
    limiter._live.pop(lost.id)  # as if its gateway had died
    renewed = 0
    touch = store.change

    async def change(hold: str, accounts: tuple[Account, ...], what: Change) -> None:
        nonlocal renewed
        renewed += 1
        await touch(hold, accounts, what)

    store.change = change  # type: ignore[assignment, method-assign]
    clock.advance(0.02)
    await until(lambda: renewed == 1)
    clock.advance(0.02)
    assert (await store.standing(account))[0].sequences == 1
    live.settle(NOTHING)
    assert (await store.standing(account))[0].sequences == 0
    await limiter.close()
