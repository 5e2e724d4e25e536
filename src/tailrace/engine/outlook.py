"""What the engine is in the middle of, as plain numbers for whoever predicts. Reads, changes nothing, any thread."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tailrace.engine.cost import CostModel
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import State
from tailrace.engine.step import StepPlan
from tailrace.types import GenerateRequest, Outlook, Prefill


def outlook(scheduler: Scheduler, cost: CostModel, step: tuple[StepPlan, float] | None, now: float) -> Outlook:
    """`step`: the plan that is being computed, and when it is expected to end."""
    computing = {} if step is None else {row.sequence: row.size for row in step[0].rows}
    prefills: list[Prefill] = []
    decodes = kv_tokens = 0
    for sequence in tuple(scheduler.running):
        if sequence.state is not State.RUNNING:
            continue
        request, ahead = sequence.group.request, computing.get(sequence, 0)
        done = sequence.computed + ahead
        todo = sequence.known - done
        if todo > 1 or (todo == 1 and not sequence.generated):
            prefills.append(prefill(request, todo, done))
        else:
            decodes += 1 + len(sequence.followers)
            kv_tokens += (done + 1) * (1 + len(sequence.followers))
    left = 0.0 if step is None else max(step[1] - now, 0.0)
    chunk, idle = scheduler.budget.chunk_tokens(max(decodes, 1), kv_tokens), scheduler.budget.chunk_tokens(0, 0)
    attention = scheduler.budget.attention
    found = Outlook(left, tuple(prefills), decodes, kv_tokens, cost.costs, chunk, idle, attention)
    return _short(found, scheduler) if scheduler.turn.above else found


def _short(found: Outlook, scheduler: Scheduler) -> Outlook:
    """With what short steps hold, beside rows of the mean context."""
    budget, context = scheduler.budget, found.kv_tokens // max(found.decodes, 1)
    seconds = budget.short_step(scheduler.standings.shortest)
    rows = budget.short_rows([context] * found.decodes, seconds, prompts=True)
    chunk = budget.chunk_tokens(rows, rows * context, seconds)
    return replace(found, above=scheduler.turn.above, short_chunk=chunk, short_rows=rows)


def prefill(request: GenerateRequest, todo: int, done: int = 0) -> Prefill:
    """A request's prompt with so many tokens to do."""
    deadline = inf if request.deadline is None else request.deadline
    return Prefill(todo, done, request.share_group, request.weight, request.step_share, request.background, deadline)
