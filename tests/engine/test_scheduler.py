"""What a plan holds: order, budget, admission, preemption, and the requests that can never run."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.engine.budget import FixedBudget
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Group
from tailrace.engine.step import StepPlan, StepResult, Update, Work
from tailrace.errors import ContextLengthExceeded, InvalidRequest
from tailrace.types import FinishReason, GenerateRequest
from tests.engine.support import prompt, request


class Bench:
    """A scheduler alone: every sampled token is 5."""

    def __init__(self, blocks: int = 64, chunk: int = 512, slots: int = 8, **limits: int) -> None:
        self.kv = KvManager(blocks, max_blocks=16)
        self.scheduler = Scheduler(
            self.kv, Limits(max_sequences=slots, max_context=1024, vocab_size=300, **limits), FixedBudget(chunk)
        )
        self.arrivals = 0
        self.now = 0.0

    def submit(self, one: GenerateRequest) -> Group:
        self.scheduler.validate(one)
        group = Group(one, self.arrivals, 0)
        self.arrivals += 1
        self.scheduler.submit(group)
        return group

    def plan(self) -> StepPlan:
        self.now += 1
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        return plan

    def commit(self, plan: StepPlan) -> list[Update]:
        count = len(plan.samplers)
        empty = np.zeros((count, 0))
        result = StepResult([5] * count, np.zeros(count, np.float32), empty.astype(np.int32), empty.astype(np.float32))
        return self.scheduler.commit(plan, result, self.now)

    def step(self) -> list[tuple[str, int, int]]:
        plan = self.plan()
        self.commit(plan)
        return shape(plan)


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(row.sequence.group.request.id, row.first, row.size) for row in plan.rows]


def test_decode_rows_come_first_and_prompts_are_chunked_beside_them() -> None:
    bench = Bench(chunk=100)
    bench.submit(request("a", 10, 9))
    assert bench.step() == [("a", 0, 10)]
    bench.submit(request("b", prompt(150, 1), 9))
    assert bench.step() == [("a", 10, 1), ("b", 0, 100)]
    assert bench.step() == [("a", 11, 1), ("b", 100, 50)]
    assert bench.step() == [("a", 12, 1), ("b", 150, 1)]


def test_only_rows_that_catch_up_are_sampled() -> None:
    bench = Bench(chunk=100)
    bench.submit(request("a", 150))
    plan = bench.plan()
    assert plan.samplers == ()
    bench.commit(plan)
    plan = bench.plan()
    assert [s.group.request.id for s in plan.samplers] == ["a"]


def test_several_prompts_share_a_step_and_the_short_one_ends_first() -> None:
    bench = Bench(chunk=128)
    bench.submit(request("long", prompt(900, 1), 5))
    bench.submit(request("short", prompt(90, 2), 5))
    assert bench.step() == [("long", 0, 38), ("short", 0, 90)]


def test_work_counts_are_those_of_the_rows() -> None:
    bench = Bench(chunk=100)
    bench.submit(request("a", 10))
    bench.step()
    bench.submit(request("b", prompt(40, 1)))
    assert bench.plan().work == Work(prefill=40, decode=1, kv_tokens=11, attention=40 * 20)


def test_all_choices_are_sampled_from_the_prompts_last_row() -> None:
    bench = Bench()
    group = bench.submit(request("a", 70, 5, n=3))
    plan = bench.plan()
    assert plan.samplers == tuple(group.sequences)
    assert plan.sample_rows == (0, 0, 0)
    assert len({sequence.slot for sequence in group.sequences}) == 3
    bench.commit(plan)
    plan = bench.plan()
    assert shape(plan) == [("a", 70, 1)] * 3
    assert len(plan.copies) == 2


def test_choices_need_their_slots_before_the_prompt_starts() -> None:
    bench = Bench(slots=4)
    bench.submit(request("a", 10, 9))
    bench.submit(request("b", prompt(10, 1), 9, n=4))
    assert bench.step() == [("a", 0, 10)]
    assert bench.scheduler.waiting_count == 4


def test_nobody_overtakes_the_first_that_waits() -> None:
    bench = Bench(blocks=8)
    bench.submit(request("a", 300, 9))
    bench.submit(request("big", prompt(400, 1), 9))
    bench.submit(request("small", prompt(10, 2), 9))
    assert bench.step() == [("a", 0, 300)]
    assert bench.scheduler.waiting_count == 2


def test_admission_leaves_each_running_sequence_a_block_to_grow_into() -> None:
    for blocks, started in ((5, 1), (6, 2)):
        bench = Bench(blocks=blocks)
        bench.submit(request("a", 128, 50))
        bench.submit(request("b", prompt(150, 1), 5))
        assert len(bench.step()) == started


def test_higher_priority_starts_first_then_arrival() -> None:
    bench = Bench(slots=1)
    bench.submit(request("first", 8, 1))
    bench.submit(request("second", 9, 1))
    bench.submit(request("urgent", 10, 1, priority=1))
    assert [bench.step()[0][0] for _ in range(3)] == ["urgent", "first", "second"]


def full(bench: Bench, **fields: int) -> list[Group]:
    """Two sequences at a block boundary, so that the next step needs a block for each."""
    return [bench.submit(request(name, prompt(128, i), 100, **fields)) for i, name in enumerate(("old", "new"))]


def test_the_newest_gives_way_and_waits_first_in_line() -> None:
    bench = Bench(blocks=5)
    _, new = full(bench)
    bench.step()
    bench.submit(request("later", prompt(10, 9), 5))
    plan = bench.plan()
    assert shape(plan) == [("old", 128, 1)]
    (preemption,) = plan.preemptions
    assert (preemption.request_id, preemption.lost_tokens, preemption.reason) == ("new", 128, "kv_full")
    bench.commit(plan)
    sequence = new.sequences[0]
    assert (sequence.known, sequence.computed, sequence.preemptions) == (129, 0, 1)
    assert bench.scheduler._waiting[0][-1] is sequence
    bench.kv.check(bench.scheduler.live_tables())


def test_lower_priority_gives_way_before_newer() -> None:
    bench = Bench(blocks=5)
    bench.submit(request("low", prompt(128, 0), 100, priority=-1))
    bench.submit(request("high", prompt(128, 1), 100))
    bench.step()
    assert [p.request_id for p in bench.plan().preemptions] == ["low"]


def test_what_was_preempted_often_enough_sits_out_the_step_instead() -> None:
    bench = Bench(blocks=5, max_preemptions=0)
    full(bench)
    bench.step()
    plan = bench.plan()
    assert plan.preemptions == ()
    assert shape(plan) == [("old", 128, 1)]


def test_when_nobody_can_move_the_newest_goes_whatever_the_cap() -> None:
    bench = Bench(blocks=5, max_preemptions=0)
    full(bench)
    bench.step()
    for position in range(128, 192):
        assert bench.step() == [("old", position, 1)]
    plan = bench.plan()
    assert [(p.request_id, p.reason) for p in plan.preemptions] == [("new", "kv_deadlock")]
    assert shape(plan) == [("old", 192, 1)]


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    bench = Bench(blocks=5)
    old, new = full(bench)
    bench.step()
    bench.commit(bench.plan())
    bench.scheduler.end(old, FinishReason.ABORT, 0.0)
    plan = bench.plan()
    assert shape(plan) == [("new", 128, 1)]
    bench.commit(plan)
    assert (new.recomputed, new.computed_prompt) == (0, 128)


def test_a_prompt_skips_what_another_computed_meanwhile() -> None:
    bench = Bench(chunk=128)
    bench.submit(request("a", prompt(600), 5))
    bench.step()
    bench.submit(request("b", prompt(600), 5))
    steps = [bench.step() for _ in range(8)]
    computed = sum(size for step in steps for name, _, size in step if name == "b" and size > 1)
    assert computed < 300


def test_nothing_to_do_is_no_plan() -> None:
    assert Bench().scheduler.plan(0.0) is None


def test_the_last_token_ends_with_length() -> None:
    bench = Bench()
    bench.submit(request("a", 10, 2))
    assert [update.finish for update in bench.commit(bench.plan())] == [None]
    assert [update.finish for update in bench.commit(bench.plan())] == [FinishReason.LENGTH]
    assert not bench.scheduler.has_work


def test_a_result_for_a_sequence_that_ended_meanwhile_is_dropped() -> None:
    bench = Bench()
    group = bench.submit(request("a", 10, 9))
    other = bench.submit(request("b", prompt(11, 1), 9))
    plan = bench.plan()
    bench.scheduler.end(group, FinishReason.ABORT, 0.0)
    assert [update.sequence for update in bench.commit(plan)] == other.sequences
    assert group.sequences[0].known == 10


def test_aborted_waiting_requests_do_not_pile_up() -> None:
    bench = Bench(slots=1)
    bench.submit(request("a", 10, 500))
    bench.step()
    for number in range(1000):
        bench.scheduler.end(bench.submit(request(f"w{number}", 10)), FinishReason.ABORT, 0.0)
    assert bench.scheduler.waiting_count == bench.scheduler.waiting_tokens == 0
    assert len(bench.scheduler._waiting) < 200


@pytest.mark.parametrize(
    ("one", "error", "param"),
    [
        (request(tokens=0), InvalidRequest, "prompt"),
        (request(n=9), InvalidRequest, "n"),
        (request(tokens=1000, max_tokens=25), ContextLengthExceeded, "max_tokens"),
        (request(tokens=1024, max_tokens=1), ContextLengthExceeded, "prompt"),
        (request(tokens=np.array([3, 300], np.int32)), InvalidRequest, "prompt"),
        (request(tokens=np.array([-1], np.int32)), InvalidRequest, "prompt"),
    ],
    ids=["empty", "choices", "too long with its answer", "too long", "above the vocabulary", "negative"],
)
def test_requests_that_can_never_run_are_refused(one: GenerateRequest, error: type[InvalidRequest], param: str) -> None:
    with pytest.raises(error) as caught:
        Bench().submit(one)
    assert caught.value.param == param


def test_more_than_the_kv_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextLengthExceeded, match="192 tokens of KV memory and the server has 128"):
        Bench(blocks=2).submit(request(tokens=100, max_tokens=50))
