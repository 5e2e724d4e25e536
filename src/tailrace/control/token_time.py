"""How long each token of an answer will take, behind its first: the mean step of the time in which it is made.

A step is as long as its decode rows make it, and longer while prompts are computed in it, up to what the budget and
the caps on long prompts allow. So the mean depends on the prompts that are there, on those that likely arrive while
the answer is made, and on who ends meanwhile. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.control.coming import Flow
from tailrace.control.first_token import FirstToken
from tailrace.engine.share import LEAST, capped_tokens, weighed
from tailrace.types import Outlook, Prefill

_ROUNDS = 4  # of: a longer time brings more arrivals, which make it longer


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` behind the first of each of its `sequences`, which read `context` tokens each at first."""

    tokens: float
    sequences: int
    context: int


def token_seconds(outlook: Outlook, first: FirstToken, mine: Answer, flows: Sequence[Flow]) -> float:
    """Mean seconds a token, from the first token on. The likely number of arrivals counts, not the mean, which rare
    long prompts would raise for everyone."""
    costs, steps = outlook.costs, max(mine.tokens, 1.0)
    there = first.prompts
    context = first.kv_tokens / len(first.ends) if first.ends else float(mine.context)
    others = sum(min(end, steps) for end in first.ends) / steps + sum(p.step_share >= 1.0 for p in there) / 2
    total = 0.0
    for _ in range(_ROUNDS):
        new = [(int(flow.rate * total + 0.5), flow) for flow in flows]
        rows = others + sum(count * min(flow.output, steps / 2) / steps for count, flow in new)
        step = costs.step + costs.decode * (rows + mine.sequences)
        step += costs.kv * (context * rows + mine.sequences * (mine.context + steps / 2))
        arrived = [(count, flow.prompt) for count, flow in new]
        total = steps * step + costs.prefill * _computed(there, arrived, steps, outlook)
    return total / steps


def _computed(there: Sequence[Prefill], new: Sequence[tuple[int, Prefill]], steps: float, outlook: Outlook) -> float:
    """Prompt tokens, weighed by their context, that so many steps compute. Prompts with a cap get its part of a step,
    or a row's worth of those that compute others; what arrives has half of the time."""
    chunk = max(outlook.chunk, 1)
    most = steps * chunk
    free = min(_weight(there, new, outlook, capped=False), most)
    share = max((p.step_share for p in (*there, *(p for _, p in new)) if p.step_share < 1.0), default=0.0)
    room = (steps - free / chunk) * capped_tokens(chunk, share) + free / chunk * LEAST
    held = _weight(there, (), outlook, capped=True) + min(_weight((), new, outlook, capped=True), room / 2)
    return free + min(held, room, most - free)


def _weight(there: Sequence[Prefill], new: Sequence[tuple[int, Prefill]], outlook: Outlook, *, capped: bool) -> float:
    prompts = [(1, prompt) for prompt in there] + list(new)
    return sum(n * weighed(p.todo, p.done, outlook.attention) for n, p in prompts if (p.step_share < 1.0) is capped)
