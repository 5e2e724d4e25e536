"""Budgets of money in this process go on where the ledger says that they stood."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.clock import ManualClock
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Change, Kind
from tailrace.control.limits.limiter import Limiter
from tailrace.control.limits.remembered import RememberedLimits
from tailrace.database.keeping import Keeping
from tailrace.errors import Unavailable
from tests.database.test_ledger import entry

TENANT, KEY = Account("acme", Amounts(money_day=100, money_month=500)), Account("acme/ci", Amounts(money_month=50))
OTHER = Account("other", Amounts(money_day=7))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture
async def keeping(url: str) -> AsyncIterator[Keeping]:
    keeping = Keeping(url)
    keeping.start()
    await keeping.opened()
    keeping.has_caught_up()
    yield keeping
    await keeping.close()


async def charge(keeping: Keeping, *rows: tuple[str, str, str, int]) -> None:
    """(when it ended, tenant, key, price)."""
    assert keeping.now is not None
    for number, (when, tenant, key, price) in enumerate(rows):
        row = replace(entry(number, tenant), ended=at(when), key=key, price=price).row()
        await keeping.now.ledger.add([row])


def watch(keeping: Keeping, asked: Callable[[], object]) -> None:
    """Call `asked` whenever the ledger has answered."""
    assert keeping.now is not None
    since = keeping.now.spending.since

    async def watched(begin: float, tenant: str, key: str | None = None) -> int:
        found = await since(begin, tenant, key)
        asked()
        return found

    keeping.now.spending.since = watched  # type: ignore[method-assign]


def spent(money: int) -> Amounts:
    return Amounts(money_day=money, money_month=money)


async def money(store: RememberedLimits, account: Account) -> tuple[float, float]:
    level = (await store.standing(account))[1]
    return level[6], level[7]


async def test_what_ended_in_this_day_and_month_is_spent(keeping: Keeping) -> None:
    await charge(
        keeping,
        ("2026-11-30 23:59:59.5", "acme", "ci", 1000),
        ("2026-12-01 00:00:00", "acme", "ci", 1),
        ("2026-12-09 23:59:59", "acme", "web", 20),
        ("2026-12-10 00:00:00", "acme", "ci", 40),
        ("2026-12-10 11:59:59", "acme", "web", 30),
        ("2026-12-10 12:00:00", "other", "ci", 5000),
    )
    store = RememberedLimits(ManualClock(wall=at("2026-12-10 12:00:00")), keeping)
    assert await money(store, TENANT) == (70, 91)
    assert await money(store, KEY) == (40, 41)
    both = (TENANT, KEY)
    assert (await store.reserve("a", both, Ask(NOTHING, spent(9)))).kind is Kind.GRANTED
    await store.change("a", both, Change(spent(9), done=True))
    refused = await store.reserve("b", both, Ask(NOTHING, spent(1)))
    assert (refused.kind, refused.account, refused.value) == (Kind.EXHAUSTED, "acme/ci", 50)
    assert (await store.reserve("c", (OTHER,), Ask(NOTHING, spent(1)))).kind is Kind.EXHAUSTED
    await store.close()


async def test_a_day_that_ends_while_the_ledger_is_asked_is_not_counted_in_the_next(keeping: Keeping) -> None:
    clock = ManualClock(wall=at("2026-12-10 23:59:59"))
    await charge(keeping, ("2026-12-10 12:00", "acme", "ci", 60))
    watch(keeping, lambda: clock.advance(1.0))
    store = RememberedLimits(clock, keeping)
    assert await money(store, TENANT) == (0, 60)
    await store.close()


async def test_many_at_once_ask_once(keeping: Keeping) -> None:
    await charge(keeping, ("2026-12-10 12:00", "acme", "ci", 95))
    store, asked = RememberedLimits(ManualClock(wall=at("2026-12-10 13:00")), keeping), list[int]()
    watch(keeping, lambda: asked.append(1))
    outcomes = await asyncio.gather(*(store.reserve(f"h{n}", (TENANT,), Ask(NOTHING, spent(1))) for n in range(20)))
    assert len(asked) == 2  # a day and a month
    assert [outcome.kind for outcome in outcomes].count(Kind.GRANTED) == 5
    await store.close()


async def test_accounts_without_a_budget_of_money_wait_for_nothing() -> None:
    store = RememberedLimits(ManualClock(), Keeping("sqlite:///nowhere"))  # never started
    to = Account("acme", Amounts(requests=1))
    assert (await store.reserve("a", (to,), Ask(Amounts(requests=1), NOTHING))).kind is Kind.GRANTED
    await store.close()


async def test_while_nobody_knows_requests_are_refused_or_let_in_unchecked(tmp_path: Path) -> None:
    """`tmp_path` is a folder: no database can be opened there."""
    keeping = Keeping(f"sqlite:///{tmp_path}", patience=0.01)
    keeping.start()
    store = RememberedLimits(ManualClock(), keeping)
    with pytest.raises(Unavailable) as caught:
        await Limiter(store).reserve((TENANT,), Ask(NOTHING, spent(1)))
    assert (caught.value.code, caught.value.retry_after) == ("limits_unavailable", 1.0)
    hold, outcome = await Limiter(store, admit_unchecked=True).reserve((TENANT,), Ask(NOTHING, spent(1)))
    assert outcome.kind is Kind.GRANTED
    hold.settle(spent(3))
    await store.close()
    await keeping.close()


async def test_what_is_still_to_be_written_is_waited_for(url: str) -> None:
    keeping = Keeping(url, patience=0.01)
    keeping.start()
    await keeping.opened()
    store = RememberedLimits(ManualClock(), keeping)
    with pytest.raises(Unavailable):
        await store.reserve("a", (TENANT,), Ask(NOTHING, spent(1)))
    keeping.has_caught_up()
    assert (await store.reserve("a", (TENANT,), Ask(NOTHING, spent(1)))).kind is Kind.GRANTED
    await store.close()
    await keeping.close()
