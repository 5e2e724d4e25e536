"""Limits in this process whose budgets of money go on, after a restart, where the ledger says that they stood.

An account's first request with such a budget waits for that look. While the ledger cannot be asked nobody knows what
is left, which is as with a Redis that does not answer: refused, or let in unchecked (the `limiter`'s choice).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.clock import Clock
from tailrace.control.limits.base import WINDOWS, Account, Amounts, Ask, Outcome
from tailrace.control.limits.memory import MemoryLimits
from tailrace.database.keeping import Keeping
from tailrace.errors import Unavailable


class RememberedLimits(MemoryLimits):
    def __init__(self, clock: Clock, keeping: Keeping) -> None:
        super().__init__(clock)
        self._keeping = keeping
        self._remembered: set[str] = set()  # accounts
        self._looks: dict[str, asyncio.Task[Unavailable | None]] = {}  # the same one for all who need it

    async def reserve(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        """Raises Unavailable."""
        await self._remember(accounts)
        return await super().reserve(hold, accounts, ask)

    async def standing(self, account: Account) -> tuple[Amounts, tuple[float, ...]]:
        """Raises Unavailable."""
        await self._remember((account,))
        return await super().standing(account)

    async def close(self) -> None:
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _remember(self, accounts: Sequence[Account]) -> None:
        for account in accounts:
            if account.name in self._remembered or not any(account.caps[c] for c in WINDOWS):
                continue
            look = self._looks.get(account.name)
            if look is None:
                look = self._looks[account.name] = asyncio.create_task(self._look_up(account))
            error = await asyncio.shield(look)  # who leaves takes it from nobody
            if error is not None:
                raise Unavailable(
                    "What is left of the budget is not known: the database does not answer",
                    code="limits_unavailable", retry_after=error.retry_after,
                ) from error  # fmt: skip

    async def _look_up(self, account: Account) -> Unavailable | None:
        tenant, slash, key = account.name.partition("/")
        try:
            spending = (await self._keeping.caught_up()).spending
            begins = self._begins()
            spent = {c: await spending.since(begin, tenant, key if slash else None) for c, begin in begins.items()}
        except Unavailable as error:
            return error
        finally:
            del self._looks[account.name]
        now = self._begins()
        self.recall(account, {c: amount for c, amount in spent.items() if begins[c] == now[c]})
        self._remembered.add(account.name)
        return None

    def _begins(self) -> dict[int, float]:
        """When the present windows began."""
        wall = self._clock.wall()
        return {c: window.begin(wall) for c, window in WINDOWS.items()}
