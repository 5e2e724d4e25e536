"""How others schedule, for comparison on the same trace: classic batching and memory rules over the real scheduler.

Each option takes back one idea, so that a table can show what each of them buys. Not for serving: `serve` cannot ask
for them. They are generous to the classics: a finished answer leaves at once, and its place in a batch costs nothing.

    static      a batch is formed when the last one has ended, of whatever waits, and runs to its end
    dynamic     the same, but a batch that is not full is waited for
    unchunked   whole prompts, first come first served: no step budget
    reserve     KV memory for the longest answer that a request may have is taken at its start
    fcfs        first come, first served: everybody is one tenant, every request of one class
"""

from __future__ import annotations

from collections.abc import Collection

from tailrace.engine.budget import ChunkBudget, FixedBudget
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Sequence
from tailrace.engine.step_draft import StepDraft
from tailrace.frozen import frozen

WHOLE = 1 << 40  # tokens: no prompt is ever cut


@frozen
class Classic:
    """`window`: seconds that a batch which is not full is waited for; None: no batches, the real admission. `fcfs` is
    for the serving plane, the others for the scheduler."""

    window: float | None = None
    unchunked: bool = False
    reserve: bool = False
    fcfs: bool = False

    @staticmethod
    def of(names: Collection[str], window: float) -> Classic:
        """From the names above; `window` is for dynamic."""
        batching = window if "dynamic" in names else 0.0 if "static" in names else None
        return Classic(batching, "unchunked" in names, "reserve" in names, "fcfs" in names)

    @property
    def schedules(self) -> bool:
        return self.window is not None or self.unchunked or self.reserve


def scheduler(kv: KvManager, limits: Limits, budget: ChunkBudget, classic: Classic) -> Scheduler:
    """The real one, unless something of it is to be taken back."""
    if not classic.schedules:
        return Scheduler(kv, limits, budget)
    return ClassicScheduler(kv, limits, FixedBudget(WHOLE) if classic.unchunked else budget, classic)


class ClassicScheduler(Scheduler):
    """`wake_at`: when `plan`, which had nothing to do now, will have something; None: when more arrives."""

    def __init__(self, kv: KvManager, limits: Limits, budget: ChunkBudget, classic: Classic) -> None:
        super().__init__(kv, limits, budget)
        self.wake_at: float | None = None
        self._classic = classic

    def _admit(self, draft: StepDraft, now: float) -> None:
        window = self._classic.window
        if window is not None:
            if self.running or not self.waiting_count:
                return
            if self.wake_at is None:
                self.wake_at = now + window
            if now < self.wake_at and self.waiting_count < self.limits.max_sequences:
                return
            self.wake_at = None
        super()._admit(draft, now)

    def _open(self, sequence: Sequence) -> bool:
        if not self._classic.reserve:
            return super()._open(sequence)
        kv = self.kv
        table = kv.open(sequence.tokens[: sequence.known], sequence.group.request.cache_key)
        if not kv.reserve(table, kv.matched(table), len(sequence.tokens)):
            kv.release(table)
            return False
        sequence.table = table
        return True
