"""The real scheduler, played with the cost model that predictions use."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tailrace.engine.cost import CostModel
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.outlook import outlook
from tailrace.engine.scheduler import Scheduler
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

    def given(self) -> Outlook:
        """As EngineBackend's: what waits in the engine counts as started."""
        seen = self.outlook()
        waiting = tuple(Prefill(entry[-1].known) for entry in self.scheduler._waiting)
        return replace(seen, prefills=seen.prefills + waiting)

    def remaining(self) -> list[float]:
        """Tokens that each answer will make yet."""
        sequences = [*self.scheduler.running, *(entry[-1] for entry in self.scheduler._waiting)]
        return [float(one.group.request.stop.max_tokens - one.generated) for one in sequences]

    def until_end(self, name: str) -> float:
        """Seconds from now until its answer is complete."""
        begun = self.now
        while any(one.group.request.id == name for one in self.scheduler.running):
            self.step()
        return self.now - begun

    def until_first(self, name: str) -> float:
        begun = self.now
        while name not in self.first:
            self.step()
        return self.first[name] - begun


def among_others(random: Random, longest: int = 90) -> Played:
    """In the middle of up to eight requests."""
    played = Played()
    others = random.randint(0, 8)
    for number in range(others):
        played.submit(f"o{number}", random.randint(8, 3000), random.randint(3, longest))
    for _ in range(random.randint(0, 12) if others else 0):
        if played.scheduler.has_work:
            played.step()
    return played
