"""The order in which requests start: bands, shares by served cost, deadlines; and the books behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.control.fair_queue import FairQueue, QueueRules
from tailrace.policy import RequestClass
from tests.control.tickets import Entry, entry

LONG = RequestClass.LONG


def always(_: Entry) -> bool:
    return True


def filled(*entries: Entry, **rules: object) -> FairQueue[Entry]:
    queue: FairQueue[Entry] = FairQueue(QueueRules(**rules))  # type: ignore[arg-type]
    for one in entries:
        queue.push(one)
    return queue


def drain(queue: FairQueue[Entry], most: int = 10_000) -> str:
    """Start all, one after the other, each ending before the next; the ids in order."""
    order = []
    while len(order) < most and (started := queue.pop_ready(always)) is not None:
        order.append(started.id)
        queue.ended(started, started.ticket.estimate.seconds)
    return " ".join(order)


def test_inside_a_tenant_the_earliest_deadline_then_arrival() -> None:
    queue = filled(
        entry("none1", arrival=1), entry("late", arrival=2, deadline=9), entry("soon", arrival=3, deadline=5),
        entry("none0", arrival=0),
    )  # fmt: skip
    expected = "soon late none0 none1"
    assert " ".join(one.id for one in queue) == expected
    assert drain(queue) == expected


def test_equal_tenants_take_turns_by_cost_not_by_number() -> None:
    big = [entry(f"A{i}", "a", arrival=i, prefill=3.0) for i in range(3)]
    small = [entry(f"b{i}", "b", arrival=i) for i in range(9)]
    assert drain(filled(*big, *small)) == "A0 b0 b1 b2 A1 b3 b4 b5 A2 b6 b7 b8"


def test_weights_are_shares() -> None:
    queue = filled(
        *(entry(f"a{i}", "a", arrival=i, weight=3.0) for i in range(300)),
        *(entry(f"b{i}", "b", arrival=i) for i in range(300)),
    )
    first = drain(queue, 200).split()
    assert sum(name[0] == "a" for name in first) == pytest.approx(150, abs=2)


def test_the_answer_counts_as_it_is_served() -> None:
    queue = filled(*(entry(f"{t}{i}", t, arrival=i) for i in range(4) for t in "ab"))
    first = queue.pop_ready(always)
    assert first is not None and first.id == "a0"
    queue.served(first, 5.0)
    starts = [queue.pop_ready(always) for _ in range(4)]
    assert [one.id for one in starts if one] == ["b0", "b1", "b2", "b3"]


def test_what_was_charged_too_much_is_given_back_at_the_end() -> None:
    queue = filled(*(entry(f"{t}{i}", t, arrival=i, prefill=10.0) for i in range(3) for t in "ab"))
    first = queue.pop_ready(always)
    assert first is not None and first.id == "a0"
    queue.ended(first, 1.0)
    assert drain(queue) == "b0 a1 b1 a2 b2"
    cheap = filled(*(entry(f"{t}{i}", t, arrival=i, prefill=10.0) for i in range(3) for t in "ab"))
    one = cheap.pop_ready(always)
    two = cheap.pop_ready(always)
    assert one is not None and two is not None
    cheap.ended(two, 1.0)  # b: 1 so far, a: 10
    third = cheap.pop_ready(always)
    assert third is not None and third.id == "b1"


def test_idling_earns_no_credit() -> None:
    queue = filled(*(entry(f"a{i}", "a", arrival=i) for i in range(20)))
    assert drain(queue, 10) == " ".join(f"a{i}" for i in range(10))
    for i in range(5):
        queue.push(entry(f"b{i}", "b", arrival=20 + i))
    assert drain(queue, 6) == "b0 a10 b1 a11 b2 a12"  # but who had less goes first among equals


def test_leaving_for_a_moment_forgives_no_debt() -> None:
    queue = filled(entry("a0", "a", prefill=100.0), entry("b0", "b", prefill=1.0))
    assert drain(queue) == "a0 b0"
    queue.push(entry("b1", "b", arrival=1))
    queue.push(entry("a1", "a", arrival=1))
    queue.push(entry("b2", "b", arrival=2))
    assert drain(queue) == "b1 b2 a1"


def test_the_first_to_come_after_nobody_waited_takes_the_last_ones_counter() -> None:
    queue = filled(entry("a0", "a", prefill=50.0))
    assert drain(queue) == "a0"
    queue.push(entry("b0", "b", arrival=1))
    queue.push(entry("a1", "a", arrival=1))
    assert queue.work_ahead(entry("x", "b", arrival=2).ticket).seconds == pytest.approx(2.0)


def test_bands_are_strict_but_for_a_small_share() -> None:
    high = [entry(f"h{i}", "a", arrival=i, band=0) for i in range(500)]
    low = [entry(f"l{i}", "b", arrival=i, band=1) for i in range(20)]
    started = drain(filled(*high, *low), 400).split()
    low_served = [i for i, name in enumerate(started) if name[0] == "l"]
    assert len(low_served) == 8  # 2 %
    assert low_served[0] == 49  # earned before it is spent
    assert drain(filled(*high, *low, shares={1: 0.0}), 500).count("l") == 0


def test_the_share_of_a_band_that_does_not_wait_is_not_saved_up() -> None:
    queue = filled(*(entry(f"h{i}", "a", arrival=i, band=0) for i in range(300)))
    drain(queue, 200)
    queue.push(entry("l", "b", band=1))
    assert "l" not in drain(queue, 40)


def test_a_class_with_a_bound_lets_others_of_the_same_tenant_pass() -> None:
    queue = filled(
        *(entry(f"L{i}", "a", arrival=i, kind=LONG) for i in range(3)), entry("s", "a", arrival=9),
        class_sequences={LONG: 2},
    )  # fmt: skip
    started = [queue.pop_ready(always) for _ in range(4)]
    assert [one and one.id for one in started] == ["L0", "L1", "s", None]
    assert started[0] is not None
    queue.ended(started[0])
    last = queue.pop_ready(always)
    assert last is not None and last.id == "L2"
    assert queue.running[LONG] == 2


def test_what_does_not_fit_is_passed_by_no_more_than_its_own_cost() -> None:
    queue = filled(
        entry("big", "a", arrival=0, prefill=3.0, sequences=8),
        *(entry(f"s{i}", "a", arrival=1 + i) for i in range(9)),
    )
    room = 4
    started = [queue.pop_ready(lambda one: one.sequences <= room) for _ in range(5)]
    assert [one and one.id for one in started] == ["s0", "s1", "s2", None, None]
    room = 8
    big = queue.pop_ready(lambda one: one.sequences <= room)
    assert big is not None and big.id == "big"
    assert len(queue) == 6


def test_without_room_for_anyone_nothing_is_counted_as_passing() -> None:
    queue = filled(*(entry(f"s{i}", arrival=i) for i in range(20)))
    for _ in range(50):
        assert queue.pop_ready(lambda one: False) is None
    assert drain(queue, 3) == "s0 s1 s2"


def test_removed_requests_are_gone_and_their_tokens_too() -> None:
    entries = [entry(f"{t}{i}", t, arrival=i) for i in range(3) for t in "ab"]
    queue = filled(*entries)
    assert queue.remove(entries[0])
    assert not queue.remove(entries[0])
    assert (len(queue), queue.tokens) == (5, 500)
    assert [one.id for one in queue] == ["a1", "b0", "a2", "b1", "b2"]
    assert drain(queue) == "a1 b0 a2 b1 b2"
    assert queue.tokens == 0


def test_work_ahead_is_what_the_order_serves_first() -> None:
    queue = filled(
        *(entry(f"a{i}", "a", arrival=i, prefill=2.0) for i in range(10)),
        *(entry(f"b{i}", "b", arrival=i) for i in range(3)),
        entry("h", "c", arrival=0, band=0, prefill=5.0),
        shares={}, share=0.0,
    )  # fmt: skip
    at = entry("x", "b", arrival=1e6).ticket  # long after: arrivals of the higher band have ceased
    assert queue.work_ahead(at).seconds == pytest.approx(5.0 + 3.0 + 3.0)
    newcomer = entry("y", "d", arrival=1e6).ticket
    assert queue.work_ahead(newcomer).seconds == pytest.approx(5.0)
    assert queue.work_ahead(entry("z", "a", arrival=1e6).ticket).seconds == pytest.approx(5.0 + 20.0 + 3.0)
    assert queue.work_ahead(entry("z", "a", arrival=4.5).ticket).seconds == pytest.approx(5.0 + 10.0 + 3.0, rel=0.3)


class Counted(float):
    """An arrival that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float(self) < float(other)


def test_a_hundred_thousand_wait_at_a_few_comparisons_each() -> None:
    queue: FairQueue[Entry] = FairQueue()
    one = entry("", "a").ticket
    times = [float(i * 7919 % 100_003) for i in range(100_000)]
    entries = [Entry(str(i), replace(one, arrival=Counted(time))) for i, time in enumerate(times)]
    Counted.comparisons = 0
    for waiting in entries:
        queue.push(waiting)
    assert Counted.comparisons < 5 * 100_000
    Counted.comparisons = 0
    for waiting in entries[:1000]:
        assert queue.remove(waiting)
    started = [queue.pop_ready(always) for _ in range(1000)]
    assert Counted.comparisons < 40 * 2000
    left = sorted(range(1000, 100_000), key=times.__getitem__)
    assert [int(done.id) for done in started if done] == left[:1000]
    assert len(queue) == 98_000


def test_who_is_held_starts_nothing_and_keeps_nobody_waiting() -> None:
    queue = filled(*(entry(f"a{i}", "a", arrival=i) for i in range(20)), entry("b", "b", arrival=99, prefill=50.0))
    held = frozenset("a")
    assert not queue.waits_only(held)
    started = queue.pop_ready(always, held)
    assert started is not None
    assert started.id == "b"
    assert queue.pop_ready(always, held) is None
    assert queue.waits_only(held)
    assert drain(queue).split() == [f"a{i}" for i in range(20)]  # in its order, as if nothing had been


def test_who_comes_is_lifted_to_those_that_are_held() -> None:
    queue = filled(entry("a0", "a", prefill=5.0), entry("a1", "a", arrival=1, prefill=5.0), entry("b0", "b"))
    assert drain(queue, 2) == "a0 b0"
    queue.push(entry("b1", "b", arrival=2))  # a has had 5 by now
    started = queue.pop_ready(always, frozenset("a"))
    assert started is not None
    queue.push(entry("b2", "b", arrival=3))
    assert drain(queue) == "a1 b2"


def test_who_may_pass_those_that_are_held() -> None:
    a = frozenset("a")
    queue = filled(entry("a0", "a"))
    assert not queue.passes(a)  # nobody else waits
    queue.push(entry("b0", "b", arrival=1, prefill=9.0))
    assert queue.passes(a)
    assert not queue.passes(frozenset("c"))  # who does not wait is not passed
    queue.push(entry("b1", "b", arrival=2))
    assert (started := queue.pop_ready(always, a)) is not None
    assert started.id == "b0"
    assert not queue.passes(a)  # b has had its part
    assert drain(queue) == "a0 b1"


def test_a_lower_band_passes_nobody_of_a_higher_one() -> None:
    queue = filled(entry("a0", "a"), entry("b0", "b", band=2))
    assert not queue.passes(frozenset("a"))


def test_who_has_waited_and_been_served_for_long_passes_nobody_who_is_held() -> None:
    queue = filled(entry("a0", "a", prefill=9.0), *(entry(f"b{i}", "b", arrival=i, prefill=0.3) for i in range(4)))
    held = frozenset("a")
    assert drain(queue, 1) == "a0"
    queue.push(entry("a1", "a", arrival=9))
    passed = []
    while queue.passes(held) and (started := queue.pop_ready(always, held)) is not None:
        passed.append(started.id)
    assert passed == ["b0", "b1"]  # and then it has had 0.6 since it came
