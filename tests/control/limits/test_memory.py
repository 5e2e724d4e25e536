"""Limits as holds, in process: exact under any order of events, nothing wasted, debts paid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.clock import ManualClock
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Change, Kind, Outcome
from tailrace.control.limits.memory import MemoryLimits
from tests.control.limits.programs import CAPS, COUNTERS, EXACTS, LEARNED, SECONDS, WALL, Model

LEASE = 30.0


def run(coroutine: Any) -> Any:
    """A store in memory never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store suspended")


class Program(RuleBasedStateMachine):
    """A tenant and one of its keys: everything that is held and spent counts in both."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(wall=WALL)
        self.store = MemoryLimits(self.clock, LEASE)
        self.serial = 0
        self.partial: dict[str, Ask] = {}
        self.spent: dict[str, Amounts] = {}

    @initialize(tenant=CAPS, key=CAPS)
    def begin(self, tenant: Amounts, key: Amounts) -> None:
        self.accounts = (Account("acme", tenant), Account("acme/ci", key))
        self.models = [Model(account, LEASE) for account in self.accounts]

    @rule(exact=EXACTS, learned=LEARNED, line=st.booleans(), force=st.integers(0, 9))
    def reserve(self, exact: Amounts, learned: Amounts, line: bool, force: int) -> None:
        self.serial += 1
        name, ask = f"h{self.serial}", Ask(exact, learned, line, force == 0)
        outcome: Outcome = run(self.store.reserve(name, self.accounts, ask))
        expected = max(model.expected(ask, COUNTERS) for model in self.models)
        if expected is Kind.GRANTED and line and any(learned):
            expected = Kind.PARTIAL
        assert outcome.kind is expected  # nothing is wasted, and nothing is let in that does not fit
        if outcome.kind >= Kind.OVER and not ask.force:
            assert outcome.kind is not Kind.OVER or (outcome.wait is not None and outcome.wait > 0)
            return
        self.spent[name] = NOTHING
        for model in self.models:
            model.take(name, exact)
        if outcome.kind is Kind.GRANTED or ask.force:
            self._granted(name, ask)
        else:
            self.partial[name] = ask

    @precondition(lambda self: self.partial)
    @rule(pick=st.integers(0, 99))
    def grow(self, pick: int) -> None:
        name = list(self.partial)[pick % len(self.partial)]
        ask = self.partial[name]
        for model in self.models:
            if name not in model.holds:  # its lease ended: it takes its exact part again
                model.take(name, ask.exact)
        expected = max(model.expected(ask, COUNTERS[2:]) for model in self.models)
        outcome: Outcome = run(self.store.grow(name, self.accounts, ask))
        assert outcome.kind is expected
        for model in self.models:
            model.holds[name].touched = self.clock.now()
        if outcome.kind is Kind.GRANTED:
            del self.partial[name]
            self._granted(name, ask)

    @precondition(lambda self: self.spent)
    @rule(pick=st.integers(0, 99), output=st.integers(0, 300), device=st.integers(0, 500_000), done=st.booleans())
    def spend(self, pick: int, output: int, device: int, done: bool) -> None:
        """Also more than what is held; also after the lease."""
        name = list(self.spent)[pick % len(self.spent)]
        known = self.spent[name]
        spent = known.plus(Amounts(1 - min(known.requests, 1), 0, output, device, 0, device, output, output))
        extra = Amounts(output_tokens=output // 3)
        for model in self.models:
            if name not in model.holds:
                model.take(name, NOTHING)
                model.holds[name].spent = list(known)
            model.change(name, spent, extra, done)
        change = Change(spent, known, extra, done)
        run(self.store.change(name, self.accounts, change))
        if not done:
            self.spent[name] = spent
            return
        del self.spent[name]
        self.partial.pop(name, None)
        run(self.store.change(name, self.accounts, change))  # told twice: counted once

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for model in self.models:
            model.advance(seconds)

    @invariant()
    def counters_are_the_sum_of_what_happened(self) -> None:
        for account, model in zip(getattr(self, "accounts", ()), getattr(self, "models", ()), strict=True):
            held, level = run(self.store.standing(account))
            for c in COUNTERS:
                assert held[c] == model.held(c)
                if account.caps[c]:
                    assert level[c] == pytest.approx(model.level[c], abs=1e-3)

    def _granted(self, name: str, ask: Ask) -> None:
        for model in self.models:
            model.take(name, ask.learned)


TestProgram = Program.TestCase
TestProgram.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def account(**caps: int) -> Account:
    return Account("acme", Amounts(**caps))


async def reserve(store: MemoryLimits, name: str, to: Account, **amounts: int) -> Outcome:
    asked = Amounts(**amounts)
    exact = Amounts(asked.requests, asked.prompt_tokens)
    return await store.reserve(name, (to,), Ask(exact, asked.minus(exact)))


async def test_200_at_once_on_a_limit_of_50() -> None:
    clock, to = ManualClock(), account(requests=50)
    store = MemoryLimits(clock)
    outcomes = await asyncio.gather(*(reserve(store, f"h{i}", to, requests=1) for i in range(200)))
    granted = [outcome for outcome in outcomes if outcome.kind is Kind.GRANTED]
    assert len(granted) == 50
    refused = [outcome for outcome in outcomes if outcome.kind is Kind.OVER]
    # Each is told a place of its own: one comes free every 60 / 50 s.
    assert [outcome.wait for outcome in refused] == [pytest.approx(1.2 * (i + 1)) for i in range(150)]


async def test_who_comes_back_when_told_gets_in() -> None:
    clock, to = ManualClock(), account(requests=6)
    store = MemoryLimits(clock)
    for i in range(6):
        await reserve(store, f"h{i}", to, requests=1)
        await store.change(f"h{i}", (to,), Change(Amounts(requests=1), done=True))
    waits = [(await reserve(store, f"r{i}", to, requests=1)).wait for i in range(5)]
    assert waits == [pytest.approx(10.0 * (i + 1)) for i in range(5)]
    for i in range(5):
        clock.advance(10.0)
        assert (await reserve(store, f"again{i}", to, requests=1)).kind is Kind.GRANTED
        await store.change(f"again{i}", (to,), Change(Amounts(requests=1), done=True))


async def test_what_exceeds_the_hold_is_debt_that_delays_the_next() -> None:
    clock, to = ManualClock(), account(output_tokens=600)
    store = MemoryLimits(clock)
    assert (await reserve(store, "a", to, output_tokens=100)).kind is Kind.GRANTED
    await store.change("a", (to,), Change(Amounts(output_tokens=900), done=True))
    late = await reserve(store, "b", to, output_tokens=100)
    assert (late.kind, late.counter, late.value, late.cap) == (Kind.OVER, "output_tokens", 900, 600)
    assert late.wait == pytest.approx(30.1)  # 301 tokens at 10 a second
    clock.advance(30.1)
    assert (await reserve(store, "b", to, output_tokens=100)).kind is Kind.PARTIAL
    clock.advance(9.9)
    assert (await reserve(store, "c", to, output_tokens=100)).kind is Kind.GRANTED


async def test_when_only_holds_are_in_the_way_it_waits_and_then_fits() -> None:
    to = account(output_tokens=300)
    store = MemoryLimits(ManualClock())
    await reserve(store, "a", to, output_tokens=200)
    asked = Ask(NOTHING, Amounts(output_tokens=150))
    assert (await store.reserve("b", (to,), asked)).kind is Kind.PARTIAL
    assert (await store.grow("b", (to,), asked)).kind is Kind.PARTIAL
    await store.change("a", (to,), Change(Amounts(output_tokens=20), done=True))
    assert (await store.grow("b", (to,), asked)).kind is Kind.GRANTED
    assert (await store.standing(to))[0].output_tokens == 150


async def test_a_request_larger_than_the_limit_can_never_fit_but_an_expectation_is_lowered_to_it() -> None:
    store = MemoryLimits(ManualClock())
    for name, caps, want in (("requests", {"requests": 1}, 2), ("sequences", {"sequences": 3}, 4)):
        outcome = await reserve(store, name, account(**caps), **{name: want})
        assert (outcome.kind, outcome.counter) == (Kind.NEVER, name)
    assert (await reserve(store, "o", account(output_tokens=100), output_tokens=5000)).kind is Kind.GRANTED


async def test_a_budget_never_refills() -> None:
    clock, to = ManualClock(), account(budget_us=1000)
    store = MemoryLimits(clock)
    assert (await reserve(store, "a", to, budget_us=400)).kind is Kind.GRANTED
    await store.change("a", (to,), Change(Amounts(budget_us=900), done=True))
    assert (await reserve(store, "b", to, budget_us=400)).kind is Kind.GRANTED  # lowered to what is left
    await store.change("b", (to,), Change(Amounts(budget_us=200), done=True))
    clock.advance(1e6)
    spent = await reserve(store, "c", to, budget_us=1)
    assert (spent.kind, spent.wait) == (Kind.EXHAUSTED, None)


async def test_a_hold_that_nobody_renews_is_freed_at_the_end_of_its_lease() -> None:
    clock, to = ManualClock(), account(sequences=1)
    store = MemoryLimits(clock, LEASE)
    await reserve(store, "dead", to, sequences=1)
    clock.advance(LEASE - 0.001)
    assert (await reserve(store, "x", to, sequences=1)).kind is Kind.PARTIAL
    clock.advance(0.001)
    assert (await reserve(store, "y", to, sequences=1)).kind is Kind.GRANTED


async def test_shadow_takes_what_it_would_refuse_and_says_so() -> None:
    to = account(requests=1)
    store = MemoryLimits(ManualClock())
    for i, kind in enumerate((Kind.GRANTED, Kind.OVER, Kind.OVER)):
        outcome = await store.reserve(f"h{i}", (to,), Ask(Amounts(requests=1), NOTHING, force=True))
        assert outcome.kind is kind
    assert (await store.standing(to))[0].requests == 3


async def test_who_only_hammers_is_not_told_ever_later_times() -> None:
    clock = ManualClock()
    store, account = MemoryLimits(clock), Account("acme", Amounts(requests=6))
    ask = Ask(Amounts(requests=1), NOTHING)
    waits = [(await store.reserve(f"h{i}", (account,), ask)).wait for i in range(200)]
    assert waits[:6] == [None] * 6
    assert waits[6:9] == [pytest.approx(10.0), pytest.approx(20.0), pytest.approx(30.0)]
    assert waits[-1] == pytest.approx(610.0)  # ten minutes, and its own place
