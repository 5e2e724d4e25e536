"""Engines that share their threads take turns: by the time they had, whoever waits, and short steps beside answers."""

from __future__ import annotations

from threading import Thread

from tailrace.engine.budget import FixedBudget, SharedBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.turns import Arbiter, Turns


def test_the_turn_goes_to_who_had_least_time() -> None:
    """Steps of 3 s against steps of 1 s: each has half of the time."""
    arbiter = Arbiter()
    slow, fast = arbiter.join(), arbiter.join()
    order: list[str] = []
    arbiter._waiting = [slow, fast]
    for _ in range(24):
        first = arbiter._first()
        order.append("slow" if first is slow else "fast")
        first.used += 3.0 if first is slow else 1.0
    assert (order.count("slow"), order.count("fast")) == (6, 18)


def test_one_alone_never_waits() -> None:
    member = Arbiter().join()
    for _ in range(3):
        member.enter()
        member.leave(0.5)
    assert member.used == 1.5


def test_two_threads_never_have_a_turn_at_once() -> None:
    arbiter = Arbiter()
    inside, most, had = [], 0, []

    def work(member: Turns) -> None:
        nonlocal most
        for _ in range(50):
            member.enter()
            inside.append(member)
            most = max(most, len(inside))
            had.append(member)
            inside.pop()
            member.leave(0.001)
        member.rest()

    threads = [Thread(target=work, args=(arbiter.join(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(had)) == (1, 150)


def test_leaving_twice_counts_once() -> None:
    member = Arbiter().join()
    member.enter()
    member.leave(0.5)
    member.leave(9.0)
    assert member.used == 0.5


def test_who_comes_back_from_a_rest_has_no_savings() -> None:
    arbiter = Arbiter()
    busy, idle = arbiter.join(), arbiter.join()
    for _ in range(10):
        busy.enter()
        busy.leave(1.0)
    idle.enter()
    idle.leave(0.0)
    assert idle.used == busy.used == 10.0


def test_a_failure_gives_the_turn_back() -> None:
    arbiter = Arbiter()
    one, other = arbiter.join(), arbiter.join()
    try:
        with one.taken():
            raise RuntimeError
    except RuntimeError:
        pass
    other.enter()
    other.leave(1.0)
    assert (one.used, other.used) == (0.0, 1.0)


def test_prompts_take_little_of_a_step_while_others_answer() -> None:
    arbiter = Arbiter()
    mine, others = arbiter.join(), arbiter.join()
    plain = CostModel()
    budget = SharedBudget(plain, mine)
    assert budget.chunk_tokens(0, 0) == plain.chunk_tokens(0, 0)
    others.streams = 3
    assert budget.chunk_tokens(0, 0) == plain.chunk_tokens(1, 0) < plain.chunk_tokens(0, 0)
    others.rest()
    assert budget.chunk_tokens(0, 0) == plain.chunk_tokens(0, 0)
    assert SharedBudget(FixedBudget(9), mine).chunk_tokens(0, 0) == 9
    others.streams = 1
    others.quit()
    assert not mine.streams_beside
