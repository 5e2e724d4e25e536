"""What the engine has done since its start, as plain numbers. Written by the loop thread only, read by anyone."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.engine.step import StepPlan
from tailrace.figures.buckets import StepTally


@dataclass(slots=True)
class EngineStats:
    steps: int = 0
    failed_steps: int = 0
    step_seconds: float = 0.0  # in forward and sample
    overhead_seconds: float = 0.0  # planning, commit and hand-off of those steps
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of those drafted
    evictions: int = 0
    finished: int = 0  # sequences that had their terminal event
    aborts: int = 0
    cancel_seconds: float = 0.0  # sum over aborts, from asking to blocks free
    worst_cancel_seconds: float = 0.0
    tally: StepTally = field(default_factory=StepTally)

    def count_plan(self, plan: StepPlan) -> None:
        self.prefill_tokens += plan.work.prefill
        self.decode_tokens += plan.work.decode
        self.preemptions += len(plan.preemptions)
        self.evictions += len(plan.evictions)
        self.tally.decode_rows.add(plan.work.decode)
        self.tally.prefill_tokens.add(plan.work.prefill)

    def count_abort(self, seconds: float) -> None:
        self.aborts += 1
        self.cancel_seconds += seconds
        self.tally.cancel.add(seconds)
        self.worst_cancel_seconds = max(self.worst_cancel_seconds, seconds)
