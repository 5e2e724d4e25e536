"""Rows made ahead decide nothing: the same plans over the same blocks as without, whoever comes, ends or gives way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tailrace.engine.ahead import Ahead
from tailrace.engine.budget import ChunkBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.sequence import Sequence
from tailrace.engine.step import StepPlan
from tailrace.types import GenerateRequest, StopConditions
from tests.engine.support import VOCAB, Oracle, Rig, prompt, request, seeded
from tests.properties.test_scheduler_program import SLOW_ROWS, TakesTime


class Recorder(TakesTime):
    """Notes every plan by names, with the blocks of its rows."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks, vocab=VOCAB)
        self.plans: list[tuple[Any, ...]] = []

    def forward(self, plan: StepPlan) -> None:
        rows = [(_name(row.sequence), *row[1:], _blocks(row.sequence)) for row in plan.rows]
        samplers = [(_name(one), one.known, one.slot) for one in plan.samplers]
        took = plan.copies, plan.preemptions, plan.evictions
        self.plans.append((rows, samplers, plan.sample_rows, plan.work, took, plan.drafts))
        super().forward(plan)


def _name(sequence: Sequence) -> tuple[str, int]:
    return sequence.group.request.id, sequence.index


def _blocks(sequence: Sequence) -> list[int]:
    assert sequence.table is not None
    return list(sequence.table.blocks)


def rig(seed: int, blocks: int) -> tuple[Rig, Recorder]:
    """Of each seed: a chunk, short steps or none, and guesses or none."""
    rng = random.Random(seed)
    runner = Recorder(blocks)
    chunk: int | ChunkBudget = rng.choice([16, 300, CostModel(coefficients=SLOW_ROWS)])
    drafter = rng.choice([None, None, Oracle(seed, most=3)])
    made = Rig(
        runner=runner, blocks=blocks, chunk=chunk, slots=6, context=448, max_preemptions=3,
        drafter=drafter, pause=0.01,
    )  # fmt: skip
    runner.clock = made.clock
    return made, runner


def arrival(rng: random.Random, number: int) -> GenerateRequest:
    """Many of them end by a token, which nobody knows ahead."""
    stop = StopConditions(rng.randrange(1, 240), token_ids=tuple(range(3, rng.choice([3, 7]))), ignore_eos=True)
    family = rng.randrange(3)
    return request(
        f"r{number}", prompt(rng.choice([1, 30, 63, 64, 65, 150]), family), stop=stop, n=rng.choice([1, 1, 1, 2]),
        priority=rng.choice([0, 0, 0, 1]), prompt_logprobs=rng.choice([None, None, None, 1]), share_group=family,
        background=rng.random() < 0.2, sampling=seeded(number),
    )  # fmt: skip


def run(engine: Rig, seed: int) -> None:
    """Arrivals, aborts and pauses in between; the same for the same seed."""
    rng = random.Random(seed)
    for number in range(20):
        engine.submit(arrival(rng, number))
        if rng.random() < 0.2:
            engine.abort(f"r{rng.randrange(number + 1)}")
        for _ in range(rng.choice([0, 0, 3, 9])):
            engine.step()
    engine.run()


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_those_of_a_scheduler_that_does_not_look_ahead(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 8 if seed % 2 else 40
    with_it, plans = rig(seed, blocks)
    held: list[bool] = []
    holds = Ahead.holds

    def watched(ahead: Ahead, running: list[Sequence], kv: KvManager) -> bool:
        held.append(holds(ahead, running, kv))
        return held[-1]

    monkeypatch.setattr(Ahead, "holds", watched)
    run(with_it, seed)
    without, expected = rig(seed, blocks)
    seen = len(held)
    monkeypatch.setattr(without.scheduler, "look_ahead", lambda plan: None)
    run(without, seed)
    assert plans.plans == expected.plans
    assert with_it.events == without.events
    assert with_it.scheduler.kv.pool.refs == without.scheduler.kv.pool.refs
    assert seen == len(held)
    assert sum(held) > 10
