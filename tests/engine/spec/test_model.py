"""A draft model's guesses: its own blocks and counters follow the sequences, whatever was accepted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest

from tailrace.clock import ManualClock
from tailrace.engine.cost import CostModel
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.spec.both import ModelDrafter
from tailrace.engine.spec.gain import Gain
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.engine.spec.model import CATCH_UP, DraftModel
from tailrace.engine.step import StepPlan, StepResult, Work
from tailrace.types import SamplingParams
from tests.engine.support import VOCAB, Rig, by_definition, prompt, request, seeded

CHEAP = CostModel(coefficients=np.array([0.01, 0.0, 0.0002, 0.0, 0.0]))


class Apprentice(FakeRunner):
    """Answers as the engine's fake model does, but for every `errs`-th token."""

    def __init__(self, blocks: int, errs: int = 0) -> None:
        super().__init__(blocks, vocab=VOCAB)
        self.errs = errs
        self.said = 0
        self.plans: list[StepPlan] = []

    def forward(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().forward(plan)

    def sample(self, plan: StepPlan) -> StepResult:
        result = super().sample(plan)
        for i in range(len(result.tokens)):
            self.said += 1
            if self.errs and self.said % self.errs == 0:
                result.tokens[i] = (result.tokens[i] + 1) % VOCAB
        return result


class Watched(ModelDrafter):
    """Checks the draft model's books after each draft."""

    def __init__(self, model: DraftModel) -> None:
        super().__init__(CHEAP, LookupDrafter(CHEAP), model)
        self.model = model

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        guesses = super().draft(sequences, work)
        tables = [twin.sequence.table for twin in self.model._twins.values()]
        self.model.kv.check([table for table in tables if table is not None])
        return guesses


def drafting(errs: int = 0, blocks: int = 100, context: int = 1024) -> Watched:
    runner = Apprentice(blocks, errs)
    return Watched(DraftModel(runner, KvManager(blocks, max_blocks=16), ManualClock(), context))


@pytest.mark.parametrize("errs", [0, 2, 7])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), seeded()], ids=["greedy", "seeded"])
def test_answers_are_the_same_and_take_fewer_steps(sampling: SamplingParams, errs: int) -> None:
    many = [
        request(f"r{i}", prompt(1 + 50 * i, seed=i), 100, sampling=replace(sampling, seed=i), n=1 + i % 2)
        for i in range(6)
    ]
    drafter = drafting(errs)
    rig = Rig(blocks=100, chunk=64, drafter=drafter).run(*many)
    for one in many:
        for index in range(one.n):
            assert rig.tokens(one.id, index) == by_definition(one, index)
    stats = rig.loop.stats
    assert stats.accepted_tokens > 200
    if not errs:
        assert stats.accepted_tokens == stats.drafted_tokens
        assert stats.steps < 50
    drafter.model.propose([], 1)
    assert not drafter.model._twins
    assert drafter.model.kv.available == 100


@pytest.mark.parametrize("errs", [0, 3])
def test_under_preemption(errs: int) -> None:
    many = [request(f"r{i}", prompt(100, seed=i), 200, sampling=seeded(i)) for i in range(6)]
    rig = Rig(blocks=12, chunk=64, max_preemptions=50, drafter=drafting(errs, blocks=12)).run(*many)
    assert rig.loop.stats.preemptions > 0
    assert rig.loop.stats.accepted_tokens > 100
    assert [rig.tokens(one.id) for one in many] == [by_definition(one) for one in many]


def test_penalties_are_left_to_the_model_itself() -> None:
    penalised = SamplingParams(temperature=0.0, presence_penalty=1.0, repetition_penalty=1.2, logprobs=3)
    one = request(tokens=20, max_tokens=30, sampling=penalised)
    drafter = drafting()
    assert Rig(drafter=drafter).run(one).tokens() == Rig().run(one).tokens()
    runner = drafter.model._runner
    assert isinstance(runner, Apprentice)
    asked = runner.plans[-1].samplers[0].group.request.sampling
    assert (asked.presence_penalty, asked.repetition_penalty, asked.logprobs) == (0.0, 1.0, None)


def test_a_long_prompt_is_caught_up_with_in_parts() -> None:
    drafter = drafting()
    rig = Rig(drafter=drafter).run(request(tokens=prompt(900), max_tokens=30))
    runner = drafter.model._runner
    assert isinstance(runner, Apprentice)
    assert max(sum(row.size for row in plan.rows) for plan in runner.plans) == CATCH_UP
    assert rig.loop.stats.accepted_tokens > 10


def test_a_prompt_seen_before_is_not_computed_again() -> None:
    drafter = drafting()
    rig = Rig(drafter=drafter).run(request(tokens=prompt(300), max_tokens=20))
    runner = drafter.model._runner
    assert isinstance(runner, Apprentice)
    before = runner.computed
    rig.run(request("again", prompt(300), 20))
    assert runner.computed - before < 100


def test_no_guesses_beyond_its_own_context() -> None:
    drafter = drafting(context=80)
    rig = Rig(drafter=drafter).run(request(tokens=60, max_tokens=100))
    runner = drafter.model._runner
    assert isinstance(runner, Apprentice)
    assert 70 < max(row.first + row.size for plan in runner.plans for row in plan.rows) <= 80
    assert rig.tokens() == by_definition(request(tokens=60, max_tokens=100))


def test_a_fault_of_the_draft_model_costs_only_its_guesses() -> None:
    drafter = drafting()
    runner = drafter.model._runner

    def broken(plan: StepPlan) -> None:
        raise RuntimeError("out of memory")

    runner.forward = broken  # type: ignore[method-assign]
    one = request(tokens=20, max_tokens=30)
    rig = Rig(drafter=drafter).run(one)
    assert rig.tokens() == by_definition(one)
    assert rig.loop.stats.failed_steps == 0


def test_a_model_that_is_never_right_is_asked_less_and_less() -> None:
    drafter = drafting(errs=1)
    Rig(drafter=drafter).run(request(tokens=20, max_tokens=400))
    runner = drafter.model._runner
    assert isinstance(runner, Apprentice)
    assert 10 < runner.said < 300


def test_its_time_decides_how_many_guesses_it_makes() -> None:
    drafter = drafting()
    one = Group(request(tokens=30, max_tokens=100), 0, 0).sequences[0]
    drafter.model.seconds = 1.0
    drafter._rate(one)
    assert drafter._ask([one], Gain(CHEAP, Work(decode=1))) == [[]]
    drafter.model.seconds = 0.001
    gain = Gain(CHEAP, Work(decode=1))
    expected = gain.length([0.6], 0.001, 8)
    one.computed, one.slot = 29, 0
    assert 0 < expected < 8
    assert drafter.model.propose([one], expected) == [by_definition(one.group.request)[:expected]]
