"""When a request that waits will start: the slots, played through with the cost model.

Running answers end, those that are first in the fair order take their places, prompts slow everyone down meanwhile.
Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from tailrace.control.estimate import prefill_seconds
from tailrace.control.work_ahead import Ahead
from tailrace.frozen import frozen
from tailrace.types import Outlook

_STARTS = 128  # played one by one; after them what is left is taken to go on at their pace


@frozen
class Start:
    """`prefill_left`: seconds of other prompts' prefill that are still to do then, of `prompts_left` of them."""

    seconds: float
    prefill_left: float
    prompts_left: float


def start(outlook: Outlook, ahead: Ahead, free: int, remaining: Sequence[float], token_seconds: float) -> Start:
    """Seconds until a request starts that the fair order puts behind `ahead`.

    `free` sequences could start now; `remaining` tokens are expected of each running one; `token_seconds` is what a
    token of an answer costs by the same standard as `ahead`.
    """
    costs, count = outlook.costs, round(ahead.requests)
    rows = max(len(remaining), min(len(remaining) + free, count), 1)
    step = costs.step + costs.decode * rows + costs.kv * outlook.kv_tokens
    chunk = costs.prefill * outlook.chunk  # seconds of prefill in a step that has some to do
    prompts = sorted(prefill_seconds(costs, prompt.done, prompt.todo) for prompt in outlook.prefills)
    prefill = sum(prompts)
    each = ahead.prefill / count if count else 0.0
    output = (ahead.seconds - ahead.prefill) / count / token_seconds if count and token_seconds > 0.0 else 0.0
    ends = sorted(remaining)
    firsts = accumulate(prompts)  # the shortest prompt has its answer begin first
    for place, first in zip(range(max(len(ends) - len(prompts), 0), len(ends)), firsts, strict=False):
        ends[place] += first / chunk if chunk > 0.0 else 1.0
    heapify(ends)
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
    mean = (sum(prompts) + ahead.prefill) / max(len(prompts) + count, 1)
    return Start(now * max(1.0, (count + 1) / (_STARTS + 1)), prefill, prefill / mean if mean else 0.0)
