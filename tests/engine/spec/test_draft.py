"""Guesses in a plan, which of them count, and that answers are the same bits whatever is guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.spec.draft import VOID, verify
from tailrace.engine.step import BAD, Draft, Row, StepPlan, StepResult, Work
from tailrace.types import FinishReason, SamplingParams, StopConditions
from tests.engine.support import Oracle, Rig, by_definition, prompt, request, seeded
from tests.engine.test_scheduler import Bench, shape


class Says:
    """A drafter that always guesses the same."""

    def __init__(self, *guesses: int) -> None:
        self.guesses = list(guesses)

    def draft(self, sequences: list[Sequence], work: Work) -> list[list[int]]:
        return [self.guesses for _ in sequences]


def drafting(*guesses: int, **fields: int) -> Bench:
    """Every sampled token is 5."""
    bench = Bench(**fields)
    bench.scheduler.drafter = Says(*guesses)
    return bench


def plan_of(guesses: list[int]) -> StepPlan:
    """A row at position 10 with these guesses, beside a plain one."""
    rows = []
    for name in ("drafted", "plain"):
        sequence = Group(request(name, 10, 20), 0, 0).sequences[0]
        sequence.append(7)
        rows.append(Row(sequence, 10, 1))
    drafted, plain = rows[0].sequence, rows[1].sequence
    size = len(guesses)
    drafted.tokens[11 : 11 + size] = guesses
    rows[0] = Row(drafted, 10, 1 + size)
    samplers = (drafted, plain, *[drafted] * size)
    return StepPlan(tuple(rows), samplers, (0, 1, *[0] * size), Work(), drafts=(Draft(0, 0, 2, size),))


@pytest.mark.parametrize(
    ("sampled", "accepted"),
    [([3, 9, 9], 0), ([1, 9, 9], 1), ([1, 2, 9], 2), ([1, 2, 3], 2), ([9, 2, 3], 0), ([1, BAD, 4], 1)],
)
def test_guesses_count_up_to_the_first_that_was_not_sampled(sampled: list[int], accepted: int) -> None:
    plan = plan_of([1, 2])
    rows, tokens = verify(plan, [sampled[0], 8, *sampled[1:]])
    assert [row.size for row in rows] == [1 + accepted, 1]
    assert tokens[:2] == [sampled[0], 8]
    assert tokens[2:] == sampled[1 : 1 + accepted] + [VOID] * (2 - accepted)


def test_samples_know_how_many_guesses_stand_before_them() -> None:
    assert plan_of([1, 2, 3]).behind == [0, 0, 1, 2, 3]


def test_a_decode_row_takes_its_guesses_along() -> None:
    bench = drafting(5, 5, 6)
    group = bench.submit(request("a", 10, 20))
    assert bench.step() == [("a", 0, 10)]
    plan = bench.plan()
    assert shape(plan) == [("a", 10, 4)]
    assert plan.work == Work(decode=4, kv_tokens=11 + 3 * 5)
    updates = bench.commit(plan)
    assert [update.token for update in updates] == [5, 5, 5]
    sequence = group.sequences[0]
    assert (sequence.known, sequence.computed, sequence.drafted, sequence.accepted) == (14, 13, 3, 2)
    assert bench.step() == [("a", 13, 4)]


def test_no_more_guesses_than_tokens_may_come() -> None:
    bench = drafting(5, 5, 5, 5, 5, 5)
    bench.submit(request("a", 10, 4))
    bench.step()
    plan = bench.plan()
    assert shape(plan) == [("a", 10, 3)]
    assert [update.finish for update in bench.commit(plan)] == [None, None, FinishReason.LENGTH]


def test_the_blocks_of_rejected_guesses_are_given_back() -> None:
    bench = drafting(*[6] * 70)
    group = bench.submit(request("a", 60, 200))
    bench.step()
    before = bench.kv.available
    plan = bench.plan()
    assert shape(plan) == [("a", 60, 71)]
    assert bench.kv.available == before - 2
    bench.commit(plan)
    assert bench.kv.available == before
    bench.kv.check(bench.scheduler.live_tables())
    assert group.sequences[0].computed == 61


def test_guesses_take_no_block_that_others_may_need() -> None:
    bench = drafting(*[5] * 8, blocks=3)
    bench.submit(request("a", 60, 60))
    bench.submit(request("b", prompt(20, 1), 60))
    bench.step()
    plan = bench.plan()
    assert shape(plan) == [("a", 60, 4), ("b", 20, 9)]
    assert plan.preemptions == ()


def test_nothing_is_guessed_for_a_prompts_last_token() -> None:
    bench = drafting(5, chunk=1)
    bench.submit(request("a", 3, 9))
    assert [bench.step() for _ in range(4)] == [[("a", 0, 1)], [("a", 1, 1)], [("a", 2, 1)], [("a", 3, 2)]]


def test_nan_behind_a_rejected_guess_is_nobodys_fault() -> None:
    bench = drafting(6)
    group = bench.submit(request("a", 10, 20))
    bench.step()
    plan = bench.plan()
    none = np.zeros(2, np.float32), np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32)
    updates = bench.scheduler.commit(plan, StepResult([5, BAD], *none), 1.0)
    assert [(update.token, update.error) for update in updates] == [(5, None)]
    assert group.sequences[0].known == 12


@pytest.mark.parametrize("right", [0, 60, 100])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), seeded()], ids=["greedy", "seeded"])
def test_answers_do_not_depend_on_guesses(sampling: SamplingParams, right: int) -> None:
    many = [
        request(f"r{i}", prompt(1 + 40 * i, seed=i), 150, sampling=replace(sampling, seed=i), n=1 + i % 2)
        for i in range(6)
    ]
    rig = Rig(blocks=100, chunk=64, drafter=Oracle(right=right)).run(*many)
    for one in many:
        for index in range(one.n):
            assert rig.tokens(one.id, index) == by_definition(one, index)
    stats = rig.loop.stats
    assert stats.drafted_tokens > 500
    assert (stats.accepted_tokens == stats.drafted_tokens) == (right == 100)
    assert (stats.accepted_tokens == 0) == (right == 0)
    if right == 100:
        assert stats.steps < 60


def test_under_preemption_too() -> None:
    many = [request(f"r{i}", prompt(100, seed=i), 200, sampling=seeded(i)) for i in range(6)]
    rig = Rig(blocks=12, chunk=64, max_preemptions=50, drafter=Oracle(right=90)).run(*many)
    assert rig.loop.stats.preemptions > 0
    assert rig.loop.stats.accepted_tokens > 100
    assert [rig.tokens(one.id) for one in many] == [by_definition(one) for one in many]


def test_log_probabilities_and_facts_come_with_each_token() -> None:
    one = request(tokens=30, max_tokens=60, sampling=SamplingParams(temperature=0.0, logprobs=2))
    plain, drafted = Rig().run(one), Rig(drafter=Oracle(right=90)).run(one)
    assert drafted.choice().logprobs == plain.choice().logprobs
    assert [e.logprobs for e in drafted.events["r"]] == [e.logprobs for e in plain.events["r"]]
    facts = drafted.choice().ends[0].facts
    assert facts is not None
    assert 0 < facts.accepted_tokens < facts.drafted_tokens
    assert drafted.loop.stats.steps == plain.loop.stats.steps - facts.accepted_tokens


@pytest.mark.parametrize("place", range(12, 22))
def test_a_stop_in_the_middle_of_a_draft_ends_the_choice_there(place: int) -> None:
    """A stop token or string among the accepted guesses: what was sampled behind it is nobody's."""
    one = request(tokens=20, max_tokens=40)
    tokens = by_definition(one)
    last = tokens[place]
    stop = StopConditions(max_tokens=40, ignore_eos=True, token_ids=(last,))
    for most in (40, place + 3):
        stopped = replace(one, stop=replace(stop, max_tokens=most))
        plain = Rig().run(stopped)
        drafted = Rig(drafter=Oracle(right=100, most=12, seed=place)).run(stopped)
        assert drafted.tokens() == plain.tokens() == tokens[: tokens.index(last) + 1]
        assert drafted.choice().text == plain.choice().text
        assert drafted.choice().finish is plain.choice().finish is FinishReason.STOP
        assert drafted.scheduler.kv.available == drafted.scheduler.kv.pool.total
        assert drafted.scheduler.free_slots == 32
