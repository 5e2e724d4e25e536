"""How limits stand now, for those whose they are and for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.control.limits.base import WINDOWS, Account, Amounts, LimitStore
from tailrace.control.limits.refusal import NAMES, scale_of, unit_of, utc

Data = dict[str, Any]
MONEY = tuple(WINDOWS)
ALL = tuple(range(len(Amounts._fields)))


async def standing(
    store: LimitStore, accounts: Sequence[Account], currency: str, wall: float, counters: Sequence[int] = ALL
) -> list[Data]:
    """Each limit that these accounts have: what it allows, what was spent of it and is not forgiven, what is held for
    requests on their way, and when a budget begins anew. Raises Unavailable."""
    found: list[Data] = []
    for account in accounts:
        limited = [c for c in counters if account.caps[c]]
        if limited:
            held, level = await store.standing(account)
            found += [
                {
                    "limit": NAMES[Amounts._fields[c]],
                    "scope": account.name,
                    **_amounts(Amounts._fields[c], account.caps[c], round(level[c]), held[c]),
                    "unit": unit_of(Amounts._fields[c], currency),
                    "renews_at": utc(WINDOWS[c].end(wall)) if c in WINDOWS else None,
                }
                for c in limited
            ]
    return found


def _amounts(counter: str, allowed: int, spent: int, held: int) -> Data:
    scale = scale_of(counter)
    return {"allowed": allowed / scale, "spent": spent / scale, "held": held / scale}
