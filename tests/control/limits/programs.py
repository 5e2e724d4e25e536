"""Random programs over limit stores, and a model of what every counter must be after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tailrace.control.limits.base import BUDGETS, EXACT, RATES, SEQUENCES, WINDOWS, Account, Amounts, Ask, Kind

CAPS = st.builds(
    Amounts,
    requests=st.sampled_from([0, 3, 50]),
    prompt_tokens=st.sampled_from([0, 100]),
    output_tokens=st.sampled_from([0, 60, 500]),
    device_us=st.sampled_from([0, 1_000_000]),
    sequences=st.sampled_from([0, 2, 8]),
    budget_us=st.sampled_from([0, 2_000_000]),
    money_day=st.sampled_from([0, 900]),
    money_month=st.sampled_from([0, 1500]),
)
EXACTS = st.tuples(st.integers(0, 2), st.integers(0, 120)).map(lambda pair: Amounts(*pair))
LEARNED = st.builds(
    lambda output, device, sequences: Amounts(0, 0, output, device, sequences, device, output, output),
    output=st.integers(0, 200),
    device=st.integers(0, 400_000),
    sequences=st.integers(0, 3),
)
SECONDS = st.sampled_from([0.0, 0.01, 1.0, 7.5, 31.0, 100.0, 40_000.0, 90_000.0])
WALL = 1_709_150_000.0  # the evening of 28 February 2024
COUNTERS = range(len(Amounts._fields))


@dataclass
class Modelled:
    """One hold as the model knows it: what is left of it, and what it has spent."""

    left: list[int]
    spent: list[int]
    touched: float


@dataclass
class Model:
    """One account, the slow way: holds are summed up anew each time."""

    account: Account
    lease: float
    now: float = 0.0
    level: list[float] = field(default_factory=lambda: [0.0] * len(COUNTERS))
    holds: dict[str, Modelled] = field(default_factory=dict)

    def window(self, c: int) -> float:
        return WINDOWS[c].begin(WALL + self.now)

    def advance(self, seconds: float) -> None:
        windows = {c: self.window(c) for c in WINDOWS}
        self.now += seconds
        for c in RATES:
            self.level[c] = max(0.0, self.level[c] - self.account.caps[c] / 60.0 * seconds)
        self.holds = {name: hold for name, hold in self.holds.items() if hold.touched + self.lease > self.now}
        for c in WINDOWS:
            if self.window(c) > windows[c]:
                self.level[c] = sum(hold.spent[c] for hold in self.holds.values())

    def held(self, c: int) -> int:
        return sum(hold.left[c] for hold in self.holds.values())

    def expected(self, ask: Ask, counters: range) -> Kind:
        return max([Kind.GRANTED, *(self._one(ask, c) for c in counters if self.account.caps[c])])

    def take(self, name: str, amounts: Amounts) -> None:
        hold = self.holds.setdefault(name, Modelled([0] * len(COUNTERS), [0] * len(COUNTERS), self.now))
        hold.touched = self.now
        for c in COUNTERS:
            if self.account.caps[c]:
                hold.left[c] += amounts[c] if c in EXACT else self.wanted(amounts[c], c)

    def change(self, name: str, spent: Amounts, extra: Amounts, done: bool) -> None:
        hold = self.holds.setdefault(name, Modelled([0] * len(COUNTERS), [0] * len(COUNTERS), self.now))
        hold.touched = self.now
        for c in COUNTERS:
            delta = spent[c] - hold.spent[c]
            if self.account.caps[c]:
                self.level[c] += delta if c != SEQUENCES else 0
                hold.left[c] = max(hold.left[c] - delta + extra[c], 0)
            hold.spent[c] = spent[c]
        if done:
            del self.holds[name]

    def wanted(self, amount: int, c: int) -> int:
        cap = self.account.caps[c]
        if c == SEQUENCES:
            return amount
        return min(amount, max(int(cap - self.level[c]), 1)) if c in BUDGETS else min(amount, cap)

    def _one(self, ask: Ask, c: int) -> Kind:
        cap, level, held = self.account.caps[c], self.level[c], self.held(c)
        if c in EXACT or c == SEQUENCES:
            want = ask.exact[c] if c in EXACT else ask.learned[c]
            if want > cap:
                return Kind.NEVER
            full = Kind.OVER if c in EXACT else Kind.PARTIAL
            return full if level + held + want > cap + 1e-6 else Kind.GRANTED
        if not ask.learned[c]:
            return Kind.GRANTED
        if c in BUDGETS and level - sum(hold.spent[c] for hold in self.holds.values()) >= cap:
            return Kind.EXHAUSTED
        if c not in BUDGETS and level >= cap:
            return Kind.OVER
        return Kind.PARTIAL if level + held + self.wanted(ask.learned[c], c) > cap + 1e-6 else Kind.GRANTED
