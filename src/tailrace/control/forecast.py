"""When a request will start and have its first token: a few steps of the future, played through with the cost model.

Two parts. `first_token` plays the steps of a started prompt, dividing each step's budget as the engine does. `start`
plays the slots: running answers end, those that are first in the fair order take their places, prompts slow everyone
down meanwhile. Both know only what is there now; that more will come is left to the error quantiles (foresight.py).
Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from tailrace.control.work_ahead import Ahead
from tailrace.engine.share import Want, divide, unweighed, weighed
from tailrace.types import Outlook, Prefill

_STEPS = 48  # played one by one; after them the work that is left is taken to go on at the last one's pace
_STARTS = 128  # the same for starts


@dataclass(frozen=True, slots=True)
class Start:
    """`prefill_left`: seconds of other prompts' prefill that are still to do then."""

    seconds: float
    prefill_left: float


def first_token(outlook: Outlook, prompt: Prefill) -> float:
    """Seconds until a prompt that starts now has its first token."""
    costs = outlook.costs
    prompts = [*outlook.prefills, prompt]
    decodes, kv_tokens, seconds = outlook.decodes, outlook.kv_tokens, outlook.step_left
    step, tokens = 0.0, 0
    for _ in range(_STEPS):
        budget = outlook.chunk if decodes else outlook.idle_chunk
        grants = _grants(budget, prompts, outlook.attention)
        attention = sum(grant * (p.done + grant / 2) for grant, p in zip(grants, prompts, strict=True))
        tokens = sum(grants)
        step = costs.step + costs.prefill * tokens + costs.decode * decodes + costs.kv * kv_tokens
        step += costs.attention * attention
        seconds += step
        if grants[-1] >= prompts[-1].todo:
            return seconds
        moved = [p._replace(todo=p.todo - grant, done=p.done + grant) for grant, p in zip(grants, prompts, strict=True)]
        ended = [p for p in moved if not p.todo]
        decodes += len(ended)
        kv_tokens += sum(p.done for p in ended)
        prompts = [p for p in moved if p.todo]
    mine = prompts[-1].todo
    return seconds + step * sum(min(p.todo, mine) for p in prompts) / max(tokens, 1)


def start(outlook: Outlook, ahead: Ahead, free: int, remaining: Sequence[float], token_seconds: float) -> Start:
    """Seconds until a request starts that the fair order puts behind `ahead`.

    `free` sequences could start now; `remaining` tokens are expected of each running one; `token_seconds` is what a
    token of an answer costs by the same standard as `ahead`.
    """
    costs, count = outlook.costs, round(ahead.requests)
    rows = max(len(remaining), min(len(remaining) + free, count), 1)
    step = costs.step + costs.decode * rows + costs.kv * outlook.kv_tokens
    chunk = costs.prefill * outlook.chunk  # seconds of prefill in a step that has some to do
    prefill = sum(p.todo * costs.prefill + costs.attention * p.todo * (p.done + p.todo / 2) for p in outlook.prefills)
    each = ahead.prefill / count if count else 0.0
    output = (ahead.seconds - ahead.prefill) / count / token_seconds if count and token_seconds > 0.0 else 0.0
    ends = sorted(remaining)
    for place in range(max(len(ends) - len(outlook.prefills), 0), len(ends)):
        ends[place] += prefill / chunk if chunk > 0.0 else 1.0  # their prompts come first
    now, steps = outlook.step_left if free <= count else 0.0, 0.0
    for place in range(min(count, _STARTS) + 1):
        if place >= free and ends:
            passed = max(heappop(ends) - steps, 0.0)
            read = min(prefill, passed * chunk)
            now += passed * step + read
            prefill -= read
            steps += passed
        if place < count:
            prefill += each
            heappush(ends, steps + (prefill / chunk if chunk > 0.0 else 1.0) + output)
    return Start(now * max(1.0, (count + 1) / (_STARTS + 1)), prefill)


def _grants(budget: int, prompts: Sequence[Prefill], attention: float) -> list[int]:
    """Tokens of each prompt in the next step, as the scheduler gives them."""
    wants = [
        Want(weighed(p.todo, p.done, attention), p.share_group, p.weight, inf, p.step_share, p.background)
        for p in prompts
    ]
    return [
        p.todo if grant >= want.tokens else min(unweighed(grant, p.done, attention), p.todo)
        for p, want, grant in zip(prompts, wants, divide(budget, wants), strict=True)
    ]
