"""Budgets of money: never over, nothing wasted, anew with each day and month; in memory and in Redis alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest

from tailrace.clock import ManualClock
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Change, Kind, LimitStore
from tailrace.control.limits.limiter import Limiter
from tailrace.control.limits.memory import MemoryLimits
from tests.control.limits.test_redis import TimedLimits
from tests.redis_server import needs_redis, redis_server

LEASE = 1e6
BEGIN = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield address


class Desk:
    """A store on a clock of the test's own."""

    def __init__(self, store: LimitStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.serial = 0

    async def at(self, text: str) -> None:
        self.clock.advance(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - self.clock.wall())
        if isinstance(self.store, TimedLimits):
            await self.store.at(self.clock.wall())

    async def ask(self, money: int, *to: Account) -> tuple[str, Kind, float | None]:
        self.serial += 1
        outcome = await self.store.reserve(f"h{self.serial}", to, Ask(NOTHING, spent(money)))
        return f"h{self.serial}", outcome.kind, outcome.wait

    async def money(self, account: Account) -> tuple[tuple[int, int], tuple[float, float]]:
        """Held and spent, of the day and the month."""
        held, level = await self.store.standing(account)
        return (held.money_day, held.money_month), (level[6], level[7])


def spent(money: int) -> Amounts:
    return Amounts(money_day=money, money_month=money)


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    clock = ManualClock(wall=BEGIN)
    if request.param == "memory":
        yield Desk(MemoryLimits(clock), clock)
        return
    store = TimedLimits(request.getfixturevalue("redis"), LEASE)
    await store.forget()
    await store.at(clock.wall())
    yield Desk(store, clock)
    await store.close()


async def test_a_day_and_a_month_begin_anew_at_midnight_of_utc(desk: Desk) -> None:
    to = Account("acme", Amounts(money_day=100, money_month=250))
    await desk.at("2026-12-30 12:00")
    for day in ("2026-12-30 13:00", "2026-12-31 13:00"):
        await desk.at(day)
        name, kind, _ = await desk.ask(100, to)
        assert kind is Kind.GRANTED
        await desk.store.change(name, (to,), Change(spent(100), done=True))
        _, kind, wait = await desk.ask(1, to)
        assert (kind, wait) == (Kind.EXHAUSTED, pytest.approx(11 * 3600))
    assert await desk.money(to) == ((0, 0), (100, 200))
    await desk.at("2026-12-31 23:59:59")
    assert (await desk.ask(1, to))[1] is Kind.EXHAUSTED
    await desk.at("2027-01-01 00:00:00")
    assert await desk.money(to) == ((0, 0), (0, 0))
    assert (await desk.ask(1, to))[1] is Kind.GRANTED


async def test_a_spent_month_outlasts_its_days(desk: Desk) -> None:
    to = Account("acme", Amounts(money_month=100))
    await desk.at("2028-02-10 12:00")
    name, _, _ = await desk.ask(100, to)
    await desk.store.change(name, (to,), Change(spent(130), done=True))
    for day in ("2028-02-11", "2028-02-28", "2028-02-29 23:59"):  # a leap year
        await desk.at(day)
        assert (await desk.ask(1, to))[1] is Kind.EXHAUSTED
    await desk.at("2028-03-01")
    assert await desk.money(to) == ((0, 0), (0, 0))  # what was spent beyond it was the old month's


async def test_a_request_counts_wholly_in_the_day_in_which_it_ends(desk: Desk) -> None:
    to = Account("acme", Amounts(money_day=100, money_month=1000))
    await desk.at("2026-12-30 23:00")
    name, _, _ = await desk.ask(80, to)
    other, _, _ = await desk.ask(10, to)
    await desk.store.change(name, (to,), Change(spent(50)))
    await desk.store.change(other, (to,), Change(spent(10), done=True))
    assert await desk.money(to) == ((30, 30), (60, 60))
    await desk.at("2026-12-31 01:00")
    assert await desk.money(to) == ((30, 30), (50, 60))
    await desk.store.change(name, (to,), Change(spent(85), spent(50), done=True))
    assert await desk.money(to) == ((0, 0), (85, 95))


async def test_a_key_has_a_budget_of_its_own_beside_its_tenants(desk: Desk) -> None:
    tenant, key = Account("acme", Amounts(money_day=100)), Account("acme/ci", Amounts(money_day=30))
    name, _, _ = await desk.ask(30, tenant, key)
    await desk.store.change(name, (tenant, key), Change(spent(30), done=True))
    assert (await desk.ask(1, tenant, key))[1] is Kind.EXHAUSTED
    assert (await desk.ask(70, tenant))[1] is Kind.GRANTED
    assert await desk.money(tenant) == ((70, 0), (30, 0))


async def test_what_costs_nothing_runs_on_a_spent_budget(desk: Desk) -> None:
    to = Account("acme", Amounts(money_day=5))
    name, _, _ = await desk.ask(5, to)
    await desk.store.change(name, (to,), Change(spent(5), done=True))
    assert (await desk.ask(0, to))[1] is Kind.GRANTED
    assert (await desk.ask(1, to))[1] is Kind.EXHAUSTED


async def test_200_at_once_spend_a_budget_to_the_last_and_never_more(desk: Desk) -> None:
    """Each expects to cost 10; those that wait get what others leave, until nothing is left for the rest."""
    to, draws = Account("acme", Amounts(money_day=500)), random.Random(7)
    limiter = Limiter(desk.store)
    totals: list[float] = []
    charged: list[int] = []

    async def one() -> None:
        hold, outcome = await limiter.reserve((to,), Ask(NOTHING, spent(10)))
        if outcome.kind is Kind.PARTIAL:
            turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            limiter.wait(hold, lambda: turn.set_result(True), lambda: turn.set_result(False))
            if not await turn:
                hold.settle(NOTHING)
                return
        if outcome.kind is not Kind.EXHAUSTED:
            held, level = await desk.store.standing(to)
            totals.append(held.money_day + level[6])
            charged.append(draws.choice((0, 10)))
            hold.settle(spent(charged[-1]))

    await asyncio.gather(*(one() for _ in range(200)))
    assert max(totals) <= 500
    assert sum(charged) == 500
    assert 50 < len(charged) < 200
    await limiter.close()
