"""Who gives way to whom by what was used, and steps that are short while others may come."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.budget import ChunkBudget, FixedBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.standing import Standings, Turn
from tailrace.engine.step import Row, StepPlan
from tests.engine.support import parts, prompt, request
from tests.engine.test_scheduler import Bench, shape

GREEDY, POLITE = 1, 2
COSTS = (0.006, 1e-3, 1.4e-3, 4e-6, 0.0)


def exact() -> CostModel:
    return CostModel(coefficients=np.array(COSTS))


class Timed(Bench):
    """A bench whose steps take what the formula says."""

    def __init__(self, budget: ChunkBudget | None = None, blocks: int = 512) -> None:
        super().__init__()
        self.scheduler = parts(blocks=blocks, chunk=budget or exact(), prefix_cache=False).scheduler
        self.seconds = 0.0

    def turn(self) -> StepPlan:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        self.seconds = exact().predict(plan.work)
        self.now += self.seconds
        self.commit(plan)
        return plan

    def greedy(self, count: int, tokens: int = 64, answer: int = 400) -> None:
        for number in range(count):
            self.submit(request(f"g{number}", prompt(tokens, number), answer, share_group=GREEDY))


def saturated(count: int = 20, budget: ChunkBudget | None = None) -> Timed:
    """Beside a polite tenant that was here once, a greedy one has worked for a while and decodes."""
    bench = Timed(budget)
    bench.submit(request("p", 50, 1, share_group=POLITE))
    bench.turn()
    bench.greedy(count)
    while bench.now < 6.0:
        bench.turn()
    return bench


def test_a_short_prompt_within_its_part_has_the_step_to_itself() -> None:
    bench = saturated()
    bench.submit(request("q", prompt(90, 99), 3, share_group=POLITE))
    assert shape(bench.turn()) == [("q", 0, 90)]
    rows = shape(bench.turn())
    assert rows[0] == ("q", 90, 1)  # its answer goes on first
    assert len(rows) > 1


def test_steps_beside_somebody_who_may_come_are_short() -> None:
    bench = saturated()
    assert bench.scheduler.turn.short
    bound = exact().short_step(50)
    for _ in range(20):
        bench.turn()
        assert bench.seconds <= bound
    bench.greedy(4, tokens=900, answer=100)
    for _ in range(20):
        plan = bench.turn()
        assert bench.seconds <= bound + 16 * COSTS[1]
        assert plan.work.prefill >= 16


def test_rows_without_room_in_a_short_step_take_turns() -> None:
    bench = saturated()
    made: Counter[str] = Counter()
    for _ in range(30):
        plan = bench.turn()
        assert plan.work.decode < 20
        made.update(name for name, *_ in shape(plan))
    assert len(made) == 20
    assert max(made.values()) - min(made.values()) <= 1


def test_who_sits_out_does_so_for_a_second_in_a_row() -> None:
    bench = saturated(budget=FixedBudget(250))
    for name in "qr":
        bench.submit(request(name, prompt(1000, ord(name)), 3, share_group=POLITE))
    alone = [all(name in "qr" for name, *_ in shape(bench.turn())) for _ in range(6)]
    assert alone == [True] * 4 + [False, True]  # of 256 ms each


def test_a_fixed_chunk_knows_no_short_steps() -> None:
    bench = saturated(budget=FixedBudget(512))
    assert bench.turn().work.decode == 20
    bench.submit(request("q", prompt(90, 99), 3, share_group=POLITE))
    assert shape(bench.turn()) == [("q", 0, 90)]


def test_alone_nothing_changes() -> None:
    bench = Timed()
    bench.greedy(20)
    for _ in range(100):
        plan = bench.turn()
        assert bench.scheduler.turn == Turn()
    assert plan.work.decode == 20


def test_two_that_ask_for_half_each_are_both_within_their_part() -> None:
    bench = Timed()
    for number in range(16):
        bench.submit(request(f"r{number}", prompt(64, number), 400, share_group=number % 2))
    while bench.turn().work.prefill:
        pass
    for _ in range(200):
        assert bench.turn().work.decode == 16
        assert bench.scheduler.turn == Turn()


def test_who_was_idle_has_a_burst_saved_and_a_debt_is_forgotten() -> None:
    bench = saturated()
    standings = bench.scheduler.standings
    assert standings.debt(GREEDY) > 0
    assert standings.debt(POLITE) == standings.debt(77) == 0
    assert standings.turn([], bench.now + 3.0) == Turn()
    assert standings.debt(GREEDY) == 0


def test_who_left_long_ago_is_not_waited_for() -> None:
    bench = saturated()
    bench.now += 400.0
    bench.submit(request("g", prompt(64, 50), 400, share_group=3))
    bench.turn()
    bench.turn()
    bench.now += 400.0
    bench.submit(request("h", prompt(64, 51), 400, share_group=4))
    bench.turn()
    assert bench.scheduler.standings.shortest == 64


def test_background_is_nobodys_neighbour() -> None:
    bench = Timed()
    bench.submit(request("b", 50, 9, share_group=POLITE, background=True))
    bench.turn()
    bench.greedy(20)
    for _ in range(100):
        bench.turn()
        assert bench.scheduler.turn == Turn()


def test_memory_is_taken_from_the_group_most_in_debt() -> None:
    bench = Timed(FixedBudget(512), blocks=4)
    older = bench.submit(request("g", prompt(60, 1), 80, share_group=GREEDY)).sequences[0]
    newer = bench.submit(request("p", prompt(60, 2), 80, share_group=POLITE)).sequences[0]
    bench.turn()
    standings = bench.scheduler.standings
    standings.worked([Row(older, 0, 60)], Turn(), FixedBudget(1), bench.now + 6.0)
    bench.now += 6.0
    assert standings.debt(GREEDY) > 0
    while not older.preemptions and not newer.preemptions:
        bench.turn()
    assert (older.preemptions, newer.preemptions) == (1, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 500), st.floats(0.001, 2.0), st.floats(0.0, 1.0)), max_size=60
    ),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4),
)
def test_who_used_no_more_than_its_part_is_never_above(
    steps: list[tuple[int, int, float, float]], weights: list[float]
) -> None:
    """`steps`: whose row, of how many tokens, how long, and the pause before it. Group 9 uses nothing."""
    standings, now = Standings(), 0.0
    sequences: dict[int, Sequence] = {}
    for group, weight in enumerate(weights):
        one = request(f"r{group}", 600, share_group=group, weight=weight)
        sequences[group] = Group(one, group, 0).sequences[0]
        standings.came(one, 600, now)
    standings.came(request("idle", 8, share_group=9), 8, now)
    used, busy, most = dict.fromkeys(sequences, 0.0), 0.0, 0.0
    for group, tokens, seconds, pause in steps:
        now += pause
        turn = standings.turn(sequences.values(), now)
        assert 9 not in turn.above
        now += seconds
        standings.worked([Row(sequences[group], 0, tokens)], turn, FixedBudget(1), now)
        used[group] += seconds
        busy += seconds
        most = max(most, seconds)
        for each, spent in used.items():
            if spent <= 2.0:  # what everyone begins with
                assert standings.debt(each) <= 1e-9
            assert standings.debt(each) <= 4.0
        assert standings.shortest < inf


def test_heavier_groups_earn_more() -> None:
    standings = Standings()
    for group, weight in ((1, 3.0), (2, 1.0)):
        standings.came(request(f"r{group}", 8, share_group=group, weight=weight), 8, 0.0)
    one, other = (Group(request(f"s{group}", 8, share_group=group), 0, 0).sequences[0] for group in (1, 2))
    now = 0.0
    for _ in range(150):  # half of the machine each
        turn = standings.turn([one, other], now)
        now += 0.1
        standings.worked([Row(one, 0, 8), Row(other, 0, 8)], turn, FixedBudget(1), now)
    assert standings.turn([one, other], now).above == {2}
