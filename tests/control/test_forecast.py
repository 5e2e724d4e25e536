"""Predicted times against the real scheduler, played with the same cost model."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.control.forecast import first_token, start
from tailrace.control.work_ahead import Ahead
from tailrace.engine.cost import CostModel
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.outlook import outlook
from tailrace.engine.scheduler import Limits, Scheduler
from tailrace.engine.sequence import Group
from tailrace.engine.step import StepResult
from tailrace.types import Outlook, Prefill, StepCosts
from tests.engine.support import prompt, request

COSTS = StepCosts(8e-3, 1.2e-3, 2e-3, 8e-7, 8e-8)


class Played:
    """The scheduler with steps that take what the cost model says."""

    def __init__(self, slots: int = 16) -> None:
        self.cost = CostModel(standard=COSTS, coefficients=CostModel().coefficients * 0 + list(COSTS))
        kv = KvManager(2000, max_blocks=128, prefix_cache=False)
        self.scheduler = Scheduler(kv, Limits(max_sequences=slots, max_context=8192), self.cost)
        self.now = 0.0
        self.first: dict[str, float] = {}
        self.begun: dict[str, float] = {}
        self.count = 0

    def submit(self, name: str, tokens: int, most: int) -> None:
        self.scheduler.submit(Group(request(name, prompt(tokens, self.count), most), self.count, 0))
        self.count += 1

    def step(self) -> None:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        for row in plan.rows:
            self.begun.setdefault(row.sequence.group.request.id, self.now)
        self.now += self.cost.predict(plan.work)
        result = StepResult([5] * len(plan.samplers), None, None, None)  # type: ignore[arg-type]
        for update in self.scheduler.commit(plan, result, self.now):
            self.first.setdefault(update.sequence.group.request.id, self.now)

    def outlook(self) -> Outlook:
        return outlook(self.scheduler, self.cost, None, self.now)

    def until_first(self, name: str) -> float:
        begun = self.now
        while name not in self.first:
            self.step()
        return self.first[name] - begun


def first_token_error(random: Random) -> float:
    """Predicted over played, less one, for a prompt that comes among up to eight others."""
    played = Played()
    others = [(random.randint(8, 3000), random.randint(50, 90)) for _ in range(random.randint(0, 8))]
    for number, (size, most) in enumerate(others):
        played.submit(f"o{number}", size, most)
    for _ in range(random.randint(0, 12) if others else 0):
        played.step()
    there, tokens = played.outlook(), random.randint(8, 3000)
    waiting = [group for group in played.scheduler._waiting]
    seen = Outlook(
        0.0, (*there.prefills, *(Prefill(entry[-1].known) for entry in waiting)), there.decodes, there.kv_tokens,
        there.costs, there.chunk, there.idle_chunk,
    )  # fmt: skip
    predicted = first_token(seen, Prefill(tokens))
    played.submit("mine", tokens, 5)
    return predicted / played.until_first("mine") - 1.0


def test_the_first_token_comes_when_it_was_said() -> None:
    """Mostly: where a grant ends a prompt one step sooner or later, a short wait is off by a step."""
    errors = sorted(abs(first_token_error(Random(seed))) for seed in range(60))
    assert errors[30] < 0.02
    assert errors[54] < 0.15
    assert errors[-1] < 0.5


def test_alone_it_is_the_cost_of_its_chunks() -> None:
    seen = Outlook(0.1, (), 0, 0, COSTS, 200, 400)
    expected = 0.1 + 8e-3 + 300 * 1.2e-3 + 8e-8 * 300 * 150
    assert first_token(seen, Prefill(300)) == pytest.approx(expected)
    assert first_token(seen, Prefill(300, 1000)) == pytest.approx(expected + 8e-8 * 300 * 1000)


def test_a_very_long_prompt_is_played_in_part() -> None:
    seen = Outlook(0.0, (), 0, 0, COSTS._replace(attention=0.0), 200, 400)
    assert first_token(seen, Prefill(100_000)) == pytest.approx(250 * (8e-3 + 400 * 1.2e-3), rel=0.01)


def test_a_start_waits_for_answers_to_end() -> None:
    seen = Outlook(0.0, (), 4, 0, COSTS, 200, 400)
    step = 8e-3 + 4 * 2e-3
    nobody = start(seen, Ahead(), 0, [100, 40, 70, 90], 2e-3)
    assert nobody.seconds == pytest.approx(40 * step)
    two = start(seen, Ahead(seconds=2 * 0.2, prefill=0.0, requests=2), 0, [100, 40, 70, 90], 2e-3)
    assert two.seconds == pytest.approx(90 * step)
    assert start(seen, Ahead(), 1, [100, 40, 70], 2e-3).seconds == 0.0


def test_prompts_that_start_before_slow_everyone_down() -> None:
    seen = Outlook(0.0, (), 4, 0, COSTS, 200, 400)
    step, chunk = 8e-3 + 4 * 2e-3, 200 * 1.2e-3
    late = start(seen, Ahead(seconds=1.0, prefill=0.6, requests=1), 0, [100, 40, 70, 90], 2e-3)
    assert late.seconds == pytest.approx(70 * step + min(0.6, 30 * chunk))
    assert late.prefill_left == pytest.approx(max(0.6 - 30 * chunk, 0.0))


def start_error(random: Random) -> float:
    """Predicted less played seconds, in parts of the played ones (of half a second at least), for the last of equal
    requests on four slots."""
    count, tokens, most = random.randint(5, 40), random.randint(20, 400), random.randint(20, 60)
    played = Played(slots=4)
    for number in range(count):
        played.submit(f"o{number}", tokens, most)
    for _ in range(random.randint(0, 30)):
        played.step()
    running = played.scheduler.running
    remaining = [float(most - sequence.generated) for sequence in running]
    waiting = played.scheduler.waiting_count
    prefill = tokens * COSTS.prefill + COSTS.attention * tokens * tokens / 2
    decode = (most - 1) * (COSTS.decode + COSTS.kv * tokens)
    ahead = Ahead((prefill + decode) * waiting, prefill * waiting, waiting)
    free = played.scheduler.free_slots
    predicted = start(played.outlook(), ahead, free, remaining, COSTS.decode + COSTS.kv * tokens)
    begun = played.now
    played.submit("mine", tokens, 5)
    played.until_first("mine")
    actual = played.begun["mine"] - begun
    return (predicted.seconds - actual) / max(actual, 0.5)


def test_a_start_comes_when_it_was_said() -> None:
    errors = sorted(abs(start_error(Random(seed))) for seed in range(40))
    assert errors[20] < 0.03
    assert errors[36] < 0.15
    assert errors[-1] < 0.3
