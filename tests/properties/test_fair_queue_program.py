"""Random arrivals, departures, starts, service and ends: the books balance, work is conserved, the bounds hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.control.fair_queue import FairQueue, QueueRules
from tests.control.tickets import Entry, entry


def always(_: Entry) -> bool:
    return True


class QueueProgram(RuleBasedStateMachine):
    """Against plain sets; nothing here knows the order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Entry] = FairQueue(QueueRules(class_sequences={"long": 2}))
        self.waiting: dict[str, Entry] = {}
        self.running: dict[str, Entry] = {}
        self.serial = 0

    @rule(
        tenant=st.sampled_from("abc"), band=st.integers(0, 2), weight=st.sampled_from([0.5, 1.0, 3.0]),
        deadline=st.none() | st.floats(0, 100), kind=st.sampled_from(["interactive", "long"]),
        cost=st.floats(0.0, 5.0), sequences=st.integers(1, 4),
    )  # fmt: skip
    def push(self, tenant: str, band: int, weight: float, cost: float, sequences: int, **more: object) -> None:
        self.serial += 1
        one = entry(
            f"r{self.serial}", tenant, arrival=self.serial, band=band, weight=weight, prefill=cost, decode=cost,
            sequences=sequences, **more,
        )  # fmt: skip
        self.queue.push(one)
        self.waiting[one.id] = one

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.queue.remove(self.waiting.pop(name))

    @rule(room=st.integers(0, 4))
    def start(self, room: int) -> None:
        one = self.queue.pop_ready(lambda entry: entry.sequences <= room)
        if one is None:
            if room >= 4:  # fits all: only the class bound holds anything back
                assert all(entry.ticket.request_class == "long" for entry in self.waiting.values())
            return
        assert one.sequences <= room
        self.running[one.id] = self.waiting.pop(one.id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.floats(0.0, 9.0), end=st.booleans())
    def serve(self, data: st.DataObject, seconds: float, end: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        if end:
            self.queue.ended(self.running.pop(name), seconds)
        else:
            self.queue.served(self.running[name], seconds)

    @invariant()
    def books_balance(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(one.prompt_tokens for one in self.waiting.values())
        assert sorted(one.id for one in self.queue) == sorted(self.waiting)
        running: Counter[str] = Counter()
        for one in self.running.values():
            running[one.ticket.request_class] += one.sequences
        assert +self.queue.running == running
        for band, turns in self.queue._bands.items():
            here = [one for one in self.waiting.values() if one.ticket.band == band]
            assert turns.waiting == len(here)
            assert turns.seconds == pytest.approx(sum(one.ticket.estimate.seconds for one in here), abs=1e-6)
            assert sorted(dict(turns.backlogged())) == sorted({one.ticket.tenant for one in here})

    def teardown(self) -> None:
        for one in list(self.running.values()):
            self.queue.ended(one)
        while (one := self.queue.pop_ready(always)) is not None:
            del self.waiting[one.id]
            self.queue.ended(one, one.ticket.estimate.seconds)
        assert not self.waiting
        assert self.queue.tokens == 0


TestQueueProgram = QueueProgram.TestCase
TestQueueProgram.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

costs = st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.1, 4.0), st.floats(0.5, 2.0)), min_size=60, max_size=60)


@settings(max_examples=40, deadline=None)
@given(costs, costs, st.sampled_from([1.0, 3.0]), st.integers(1, 6), st.integers(20, 60))
def test_two_backlogged_tenants_are_served_alike(
    left: list[tuple[float, float, float]],
    right: list[tuple[float, float, float]],
    weight: float,
    slots: int,
    starts: int,
) -> None:
    """Served cost over weight differs, at any time while both wait, by at most 2 (P + S D): the largest prefill, and
    the largest answer for each slot (docs/decisions). What a request costs is not what was expected of it."""
    queue: FairQueue[Entry] = FairQueue()
    truth: dict[str, float] = {}
    for tenant, share, sizes in (("a", weight, left), ("b", 1.0, right)):
        for number, (prefill, decode, error) in enumerate(sizes):
            one = entry(f"{tenant}{number}", tenant, arrival=number, weight=share, prefill=prefill, decode=decode)
            truth[one.id] = prefill + decode * error
            queue.push(one)
    served = Counter[str]()
    running: list[Entry] = []
    bound = 2 * (4.0 + slots * 4.0 * 2.0)
    for _ in range(starts):
        while len(running) < slots:
            one = queue.pop_ready(always)
            assert one is not None, "work is conserved"
            served[one.ticket.tenant] += one.ticket.estimate.prefill_seconds / one.ticket.weight
            running.append(one)
        done = running.pop(0)
        rest = truth[done.id] - done.ticket.estimate.prefill_seconds
        queue.served(done, rest / 2)
        queue.ended(done, truth[done.id])
        served[done.ticket.tenant] += rest / done.ticket.weight
        if sum(1 for waiting in queue if waiting.ticket.tenant == "a") == 0:
            break
        if sum(1 for waiting in queue if waiting.ticket.tenant == "b") == 0:
            break
        assert abs(served["a"] - served["b"]) <= bound


def test_weights_of_three_to_one_are_kept_within_five_percent() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for number in range(4000):
        size = 1.0 + number % 7
        queue.push(entry(f"a{number}", "a", arrival=number, weight=3.0, prefill=size, decode=1.0))
        queue.push(entry(f"b{number}", "b", arrival=number, prefill=5.0 - number % 4, decode=2.0))
    served = Counter[str]()
    for _ in range(3000):
        one = queue.pop_ready(always)
        assert one is not None
        served[one.ticket.tenant] += one.ticket.estimate.seconds
        queue.ended(one, one.ticket.estimate.seconds)
    assert served["a"] / served["b"] == pytest.approx(3.0, rel=0.05)


def test_a_large_request_among_endless_small_ones_starts() -> None:
    """Nobody starves: small ones keep coming and always fit, the large one needs everything."""
    queue: FairQueue[Entry] = FairQueue()
    queue.push(entry("large", "a", arrival=0, prefill=10.0, sequences=8))
    running: list[Entry] = []
    for turn in range(200):
        queue.push(entry(f"s{turn}", "b" if turn % 2 else "a", arrival=turn + 1.0))
        while (one := queue.pop_ready(lambda e: e.sequences + len(running) <= 8)) is not None:
            if one.id == "large":
                assert turn <= 20
                return
            running.append(one)
        if len(running) > 4 or turn % 2:
            queue.ended(running.pop(0), 1.0) if running else None
    raise AssertionError("it never started")
