"""Random arrivals, aborts and steps: every request gets exactly its own tokens, ends once and leaves nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.types import FinishReason, GenerateRequest
from tests.engine.support import Rig, by_definition, prompt, request, seeded


class SchedulerProgram(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, GenerateRequest] = {}
        self.aborted: set[str] = set()

    @initialize(
        blocks=st.integers(7, 16), chunk=st.sampled_from([1, 16, 64, 300]), cap=st.integers(0, 3), cache=st.booleans()
    )
    def start(self, blocks: int, chunk: int, cap: int, cache: bool) -> None:
        self.rig = Rig(blocks=blocks, chunk=chunk, slots=6, context=448, max_preemptions=cap, prefix_cache=cache)

    @rule(
        length=st.sampled_from([1, 30, 64, 65, 128, 200]),
        family=st.integers(0, 2),
        most=st.integers(0, 120),
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(0, 1),
        scores=st.sampled_from([None, None, 1]),
    )
    def submit(self, length: int, family: int, most: int, n: int, priority: int, scores: int | None) -> None:
        one = request(
            f"r{len(self.requests)}", prompt(length, family), most, n=n, priority=priority, prompt_logprobs=scores,
            sampling=seeded(family),
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
