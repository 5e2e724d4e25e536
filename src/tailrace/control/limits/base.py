"""What limits count, and the contract of the two places where they are kept (memory, Redis).

Every limit of an account is a counter with two parts: `level`, what was spent and has not yet been forgiven, and
`held`, what running requests may still spend. A rate's level falls evenly, a minute's worth in a minute; so a bucket
holds one minute's worth. When a hold is granted, level + held is within the limit. Spending beyond a hold is taken all
the same; what exceeds the limit then is debt that has to be forgiven before anything new is let in.

A budget's level does not fall by itself. It is spent when what has ended makes up all of it: what is known of a running
request may be corrected, so while that is in the way others wait. That of money begins anew with each calendar day or
month of UTC; a request counts, with its whole price, in the one in which it ends.

Three kinds of amounts. *Exact* ones (requests, prompt tokens) are known at the door: what does not fit is refused.
*Learned* ones (output tokens, device-seconds) are expectations: while only the holds of others stand in the way, the
request waits, because they will mostly settle for less. *Sequences* are given back, so for them a request waits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from tailrace.control.limits.windows import Window
from tailrace.frozen import frozen
from tailrace.policy import Quota

MICRO = 1_000_000  # device time is counted in whole microseconds, money in whole millionths


class Amounts(NamedTuple):
    """One number per counter, in the order in which both stores keep them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    device_us: int = 0
    sequences: int = 0
    budget_us: int = 0  # device time again, against a budget that never refills
    money_day: int = 0
    money_month: int = 0  # the same money again

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Amounts) -> Amounts:
        return Amounts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Amounts()
EXACT = frozenset((0, 1))
RATES = frozenset((0, 1, 2, 3))
SEQUENCES = 4
BUDGETS = frozenset((5, 6, 7))
WINDOWS = {6: Window.DAY, 7: Window.MONTH}  # the budgets that begin anew
PER_MINUTE = 60.0
PROMISES = 10  # minutes: who only hammers is not told ever later times
TOLERANCE = 1e-6  # of a token: who comes back when told must not fail by a rounding error


@frozen
class Account:
    """A tenant, or a key of one. `caps` 0: no limit."""

    name: str
    caps: Amounts


class Kind(IntEnum):
    """In the order of severity."""

    GRANTED = 0
    PARTIAL = 1  # the exact part is held; the rest has to wait
    OVER = 2  # over the limit now
    EXHAUSTED = 3  # a budget is spent
    NEVER = 4  # more than the whole limit


@frozen
class Outcome:
    """`wait`: seconds until it would fit if nothing but time helped, or until a spent budget begins anew; None where
    time does not help."""

    kind: Kind
    counter: str = ""
    account: str = ""
    wait: float | None = None
    value: float = 0.0  # level and holds as they stand
    cap: float = 0.0
    held: int = 0  # of the value


@frozen
class Ask:
    """`line`: others of the account wait already, so only the exact part is asked for. `force`: take everything
    whatever the outcome (shadow mode)."""

    exact: Amounts
    learned: Amounts
    line: bool = False
    force: bool = False


@frozen
class Change:
    """`spent`: all that was spent so far; `known`: how much of it the store has been told, should it have lost the
    hold. What is spent leaves the hold. `extra` is added to the hold."""

    spent: Amounts
    known: Amounts = NOTHING
    extra: Amounts = NOTHING
    done: bool = False


class LimitStore(Protocol):
    """Every call is one atomic operation. A hold that is not touched for `lease` seconds is freed, and what it had
    not spent with it. Calls about a hold that has ended change nothing: they may have overtaken each other."""

    lease: float
    shared: bool  # others, who cannot wake us, change the same counters

    async def reserve(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome: ...

    async def grow(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        """Try again for the learned part of a hold that was PARTIAL."""
        ...

    async def change(self, hold: str, accounts: Sequence[Account], change: Change) -> None:
        """Spend, extend, renew, or end a hold. Never refuses. Repeating the last one of a hold changes nothing."""
        ...

    async def standing(self, account: Account) -> tuple[Amounts, tuple[float, ...]]:
        """What is held, and the level of each counter now."""
        ...

    async def close(self) -> None: ...


def caps(quota: Quota) -> Amounts:
    return Amounts(
        quota.requests_per_minute,
        quota.prompt_tokens_per_minute,
        quota.output_tokens_per_minute,
        _micros(quota.device_seconds_per_minute),
        quota.concurrency,
        _micros(quota.budget_device_seconds),
        _micros(quota.money_per_day),
        _micros(quota.money_per_month),
    )


def _micros(amount: float) -> int:
    """A limit so small that it rounds to nothing must not become none at all."""
    return max(round(amount * MICRO), 1) if amount else 0
