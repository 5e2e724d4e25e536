"""Random arrivals, aborts and steps: every request gets exactly its own tokens, ends once and leaves nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.clock import ManualClock
from tailrace.engine.cost import CostModel
from tailrace.engine.fake_runner import FakeRunner, _hashes
from tailrace.engine.spec.draft import Drafter
from tailrace.engine.step import StepPlan
from tailrace.types import FinishReason, GenerateRequest
from tests.engine.spec.test_model import drafting
from tests.engine.support import VOCAB, Oracle, Rig, by_definition, prompt, request, seeded

SLOW_ROWS = np.array([2e-3, 1e-3, 2e-2, 0.0, 0.0])  # of which few fit a short step


class TakesTime(FakeRunner):
    """Steps of 0.1 s, so that groups can have used more than their part."""

    clock: ManualClock | None = None

    def forward(self, plan: StepPlan) -> None:
        super().forward(plan)
        if self.clock is not None:
            self.clock.advance(0.1)


class SchedulerProgram(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, GenerateRequest] = {}
        self.aborted: set[str] = set()

    @initialize(
        blocks=st.integers(7, 16),
        chunk=st.sampled_from([1, 16, 64, 300, None]),
        cap=st.integers(0, 3),
        cache=st.booleans(),
        right=st.sampled_from([None, -1, 0, 50, 95]),
    )
    def start(self, blocks: int, chunk: int | None, cap: int, cache: bool, right: int | None) -> None:
        """`chunk` None: the cost model's, which knows short steps. `right`: of a hundred guesses that a drafter makes;
        without one there are none, and below 0 a draft model makes them."""
        drafter: Drafter | None = None if right is None else Oracle(right=right, most=80)
        if right == -1:
            drafter = drafting(errs=4, blocks=blocks)
        runner = TakesTime(blocks, vocab=VOCAB)
        budget = CostModel(coefficients=SLOW_ROWS) if chunk is None else chunk
        self.rig = Rig(
            runner=runner, blocks=blocks, chunk=budget, slots=6, context=448, max_preemptions=cap, prefix_cache=cache,
            drafter=drafter, pause=0.01,
        )  # fmt: skip
        runner.clock = self.rig.clock

    @rule(
        length=st.sampled_from([1, 30, 64, 65, 128, 200]),
        family=st.integers(0, 2),
        most=st.integers(0, 120),
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(0, 1),
        scores=st.sampled_from([None, None, 1]),
        background=st.booleans(),
    )
    def submit(
        self, length: int, family: int, most: int, n: int, priority: int, scores: int | None, background: bool
    ) -> None:
        one = request(
            f"r{len(self.requests)}", prompt(length, family), most, n=n, priority=priority, prompt_logprobs=scores,
            background=background, share_group=family, step_share=0.25 if family == 2 else 1.0, sampling=seeded(family),
        )  # fmt: skip
        self.requests[one.id] = one
        self.rig.submit(one)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(self.requests)))
        self.aborted.add(victim)
        self.rig.abort(victim)
        assert all(self.rig.choice(victim, index).finish for index in range(self.requests[victim].n))

    @rule(times=st.integers(1, 40))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.rig.step()

    @invariant()
    def running_is_bounded_and_ordered(self) -> None:
        if not hasattr(self, "rig"):
            return
        running = self.rig.scheduler.running
        assert running == sorted(running, key=lambda sequence: sequence.order())
        slots = [sequence.slot for sequence in running]
        assert len(slots) == len(set(slots)) <= 6
        assert min(slots, default=0) >= 0

    @invariant()
    def named_blocks_hold_what_their_names_say(self) -> None:
        """And so never a rejected guess: names come from tokens that count, and memory from what was computed last."""
        if not hasattr(self, "rig"):
            return
        runner, size = self.rig.runner, self.rig.scheduler.kv.block_tokens
        assert isinstance(runner, FakeRunner)
        for node in self.rig.scheduler.kv.tree.nodes():
            first, parent = 0, node.parent
            while parent is not None and parent.parent is not None:
                first, parent = first + size, parent.parent
            expected = _hashes(np.frombuffer(node.key, np.int32), first)
            assert (runner._memory[node.block] == expected).all()

    @invariant()
    def counters_fall_back_to_what_counts(self) -> None:
        if not hasattr(self, "rig"):
            return
        for sequence in self.rig.scheduler.running:
            assert sequence.table is not None
            assert sequence.computed < sequence.known
            assert sequence.accepted <= sequence.drafted
            if sequence.generated > 1:
                assert len(sequence.table.blocks) <= self.rig.scheduler.kv.blocks_for(sequence.known)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        for name, one in self.requests.items():
            for index in range(one.n):
                choice, expected = self.rig.choice(name, index), by_definition(one, index)
                assert choice.tokens == expected[: len(choice.tokens)]
                if choice.tokens != expected:
                    assert choice.finish is FinishReason.ABORT
                elif expected:
                    assert choice.finish is FinishReason.LENGTH
                assert choice.finish is FinishReason.LENGTH or name in self.aborted
        scheduler = self.rig.scheduler
        scheduler.kv.check([])
        assert scheduler.kv.available == scheduler.kv.pool.total
        assert scheduler.free_slots == 6
        assert scheduler.waiting_count == scheduler.waiting_tokens == 0


TestSchedulerProgram = SchedulerProgram.TestCase
TestSchedulerProgram.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
