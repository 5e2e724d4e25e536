"""Limits in this process: the reference of what `script.lua` does in Redis."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.clock import Clock
from tailrace.control.limits.base import (
    BUDGETS,
    EXACT,
    NOTHING,
    PER_MINUTE,
    PROMISES,
    RATES,
    SEQUENCES,
    TOLERANCE,
    WINDOWS,
    Account,
    Amounts,
    Ask,
    Change,
    Kind,
    Outcome,
)

_SIZE = len(Amounts._fields)
_MEMORY = 60.0  # seconds for which an ended hold is known to have ended


@dataclass(slots=True)
class _Counters:
    """Of one account. `promised`: what callers have been told to come back for; it leaks like the level. `open`: what
    live holds have spent of budgets, which is where a level begins, and begins anew; `ends`: when that will be;
    `budgets`: those that have begun."""

    at: float
    level: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    held: list[int] = field(default_factory=lambda: [0] * _SIZE)
    promised: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    open: list[int] = field(default_factory=lambda: [0] * _SIZE)
    ends: dict[int, float] = field(default_factory=lambda: dict.fromkeys(WINDOWS, 0.0))
    budgets: set[int] = field(default_factory=set)

    def leak(self, caps: Amounts, now: float) -> None:
        passed = max(now - self.at, 0.0)
        self.at = max(now, self.at)
        for c in RATES:
            fallen = caps[c] / PER_MINUTE * passed
            self.level[c] = max(self.level[c] - fallen, 0.0)
            self.promised[c] = max(self.promised[c] - fallen, 0.0)

    def begin(self, caps: Amounts) -> None:
        """Budgets that there were not before: what runs already is in them."""
        for c in BUDGETS:
            if caps[c] and c not in self.budgets:
                self.budgets.add(c)
                self.level[c] = max(self.level[c], float(self.open[c]))

    def turn(self, wall: float) -> None:
        """Begin the windows that have begun."""
        for c, end in self.ends.items():
            if wall >= end:
                self.level[c] = float(self.open[c])
                self.ends[c] = WINDOWS[c].end(wall)


@dataclass(slots=True)
class _Record:
    expires: float
    spent: Amounts
    held: dict[str, list[int]]  # by account


class MemoryLimits:
    """`lease` is infinite by default: when this process ends, its counters end with it."""

    shared = False

    def __init__(self, clock: Clock, lease: float = float("inf")) -> None:
        self.lease = lease
        self._clock = clock
        self._accounts: dict[str, _Counters] = {}
        self._holds: OrderedDict[str, _Record] = OrderedDict()  # by lease, the next to end first
        self._ended: OrderedDict[str, float] = OrderedDict()  # when, the earliest first

    async def reserve(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        self._catch_up(accounts)
        outcome = self._worst(accounts, ask, range(_SIZE))
        if outcome.kind >= Kind.OVER and not ask.force:
            self._promise(outcome, accounts, ask)
            return outcome
        if ask.line and outcome.kind is Kind.GRANTED and any(ask.learned):
            outcome = Outcome(Kind.PARTIAL)
        record = self._put(hold, accounts)
        self._take(record, accounts, ask.exact)
        if outcome.kind is Kind.GRANTED or ask.force:
            self._take(record, accounts, ask.learned)
        return outcome

    async def grow(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        self._catch_up(accounts)
        if hold in self._ended:
            return Outcome(Kind.GRANTED)  # nobody is there any more to use it
        if hold not in self._holds:
            self._take(self._put(hold, accounts), accounts, ask.exact)
        outcome = self._worst(accounts, ask, (c for c in range(_SIZE) if c not in EXACT))
        self._renew(hold)
        if outcome.kind is Kind.GRANTED or ask.force:
            self._take(self._holds[hold], accounts, ask.learned)
        return outcome

    async def change(self, hold: str, accounts: Sequence[Account], change: Change) -> None:
        self._catch_up(accounts)
        if hold in self._ended:
            return
        record = self._holds.get(hold)
        if record is None:
            record = self._put(hold, accounts, change.known)
        delta = change.spent.minus(record.spent)
        record.spent = change.spent
        self._open(record, delta)
        for account in accounts:
            self._settle(account, record.held[account.name], delta, change)
        if change.done:
            self._open(self._holds.pop(hold), NOTHING.minus(change.spent))
            self._ended[hold] = self._clock.now()
        else:
            self._renew(hold)

    async def standing(self, account: Account) -> tuple[Amounts, tuple[float, ...]]:
        self._catch_up((account,))
        counters = self._accounts[account.name]
        return Amounts(*counters.held), tuple(counters.level)

    async def close(self) -> None:
        pass

    def recall(self, account: Account, spent: Mapping[int, int]) -> None:
        """What requests that have ended spent in the present windows, by counter: its level is at least that."""
        self._catch_up((account,))
        counters = self._accounts[account.name]
        for c, amount in spent.items():
            counters.level[c] = max(counters.level[c], amount + counters.open[c])

    # --- inside

    def _catch_up(self, accounts: Iterable[Account]) -> None:
        """Free what nobody has renewed, and let levels fall until now."""
        now, wall = self._clock.now(), self._clock.wall()
        while self._holds and (first := next(iter(self._holds.values()))).expires <= now:
            self._holds.popitem(last=False)
            self._open(first, NOTHING.minus(first.spent))
            for name, held in first.held.items():
                for c in range(_SIZE):
                    self._accounts[name].held[c] -= held[c]
        while self._ended and next(iter(self._ended.values())) <= now - _MEMORY:
            self._ended.popitem(last=False)
        for account in accounts:
            counters = self._accounts.setdefault(account.name, _Counters(now))
            counters.leak(account.caps, now)
            counters.turn(wall)
            counters.begin(account.caps)

    def _worst(self, accounts: Sequence[Account], ask: Ask, counters: Iterable[int]) -> Outcome:
        worst = Outcome(Kind.GRANTED)
        for c in counters:
            for account in accounts:
                if account.caps[c]:
                    outcome = self._look(account, c, ask)
                    if (outcome.kind, outcome.wait or 0.0) > (worst.kind, worst.wait or 0.0):
                        worst = outcome
        return worst

    def _look(self, account: Account, c: int, ask: Ask) -> Outcome:
        """What one counter says."""
        counters, cap = self._accounts[account.name], account.caps[c]
        if c in EXACT:
            kind, wait = _exact(counters, c, cap, ask.exact[c])
        elif c == SEQUENCES:
            kind, wait = _sequences(counters, cap, ask.learned[c])
        else:
            kind, wait = _learned(counters, c, cap, ask.learned[c])
        if kind is Kind.EXHAUSTED and c in WINDOWS:
            wait = counters.ends[c] - self._clock.wall()
        held = counters.held[c]
        return Outcome(kind, Amounts._fields[c], account.name, wait, counters.level[c] + held, cap, held)

    def _promise(self, outcome: Outcome, accounts: Sequence[Account], ask: Ask) -> None:
        """The next caller that is refused is told to come after this one."""
        if outcome.kind is Kind.OVER:
            c = Amounts._fields.index(outcome.counter)
            cap = next(account.caps[c] for account in accounts if account.name == outcome.account)
            amount = ask.exact[c] if c in EXACT else min(ask.learned[c], cap)
            promised = self._accounts[outcome.account].promised
            promised[c] = min(promised[c] + amount, PROMISES * cap)

    def _put(self, hold: str, accounts: Sequence[Account], spent: Amounts = NOTHING) -> _Record:
        empty = {account.name: [0] * _SIZE for account in accounts}
        record = self._holds[hold] = _Record(self._clock.now() + self.lease, spent, empty)
        self._open(record, spent)
        return record

    def _open(self, record: _Record, spent: Amounts) -> None:
        """Live holds have spent so much more; an ended one takes its part away again."""
        for name in record.held:
            for c in BUDGETS:
                self._accounts[name].open[c] += spent[c]

    def _take(self, record: _Record, accounts: Sequence[Account], amounts: Amounts) -> None:
        for account in accounts:
            counters, held = self._accounts[account.name], record.held[account.name]
            for c in _limited(account):
                amount = amounts[c] if c in EXACT else _wanted(amounts[c], c, account.caps[c], counters.level[c])
                counters.held[c] += amount
                held[c] += amount

    def _settle(self, account: Account, held: list[int], delta: Amounts, change: Change) -> None:
        counters = self._accounts[account.name]
        for c in range(_SIZE):
            if account.caps[c] and c != SEQUENCES:
                counters.level[c] += delta[c]
            left = 0 if change.done else max(held[c] - delta[c] + change.extra[c], 0)
            if not account.caps[c]:
                left = min(left, held[c])
            counters.held[c] += left - held[c]
            held[c] = left

    def _renew(self, hold: str) -> None:
        self._holds[hold].expires = self._clock.now() + self.lease
        self._holds.move_to_end(hold)


def _exact(counters: _Counters, c: int, cap: int, want: int) -> tuple[Kind, float | None]:
    over = counters.level[c] + counters.held[c] + want - cap
    if want > cap:
        return Kind.NEVER, None
    if over <= TOLERANCE:
        return Kind.GRANTED, None
    return Kind.OVER, (over + counters.promised[c]) / (cap / PER_MINUTE)


def _sequences(counters: _Counters, cap: int, want: int) -> tuple[Kind, float | None]:
    if want > cap:
        return Kind.NEVER, None
    return (Kind.PARTIAL if counters.held[SEQUENCES] + want > cap else Kind.GRANTED), None


def _learned(counters: _Counters, c: int, cap: int, amount: int) -> tuple[Kind, float | None]:
    level, rate = counters.level[c], cap / PER_MINUTE
    want = _wanted(amount, c, cap, level)
    over = level + counters.held[c] + want - cap
    if not want:
        return Kind.GRANTED, None
    if level >= cap and c not in BUDGETS:
        return Kind.OVER, (level - cap + 1 + counters.promised[c]) / rate
    if level - counters.open[c] >= cap:
        return Kind.EXHAUSTED, None
    if over <= TOLERANCE:
        return Kind.GRANTED, None
    return Kind.PARTIAL, None if c in BUDGETS else over / rate


def _limited(account: Account) -> Iterable[int]:
    return (c for c in range(_SIZE) if account.caps[c])


def _wanted(amount: int, c: int, cap: int, level: float) -> int:
    """What is held of an expectation: never more than there could ever be room for, or it would wait for ever."""
    if c == SEQUENCES:
        return amount
    if c in BUDGETS:
        return min(amount, max(int(cap - level), 1))
    return min(amount, cap)
