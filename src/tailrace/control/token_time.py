"""How long each token of an answer will take, behind its first: the mean step of the time in which it is made.

A step is as long as its decode rows make it, and longer while prompts are computed in it, up to what the budget and
the caps on long prompts allow. So the mean depends on the prompts that are there, on those that likely arrive while
the answer is made, and on who ends meanwhile. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.control.coming import Flow
from tailrace.control.first_token import FirstToken
from tailrace.engine.share import LEAST, capped_tokens, weighed
from tailrace.frozen import frozen
from tailrace.types import Outlook, Prefill

_ROUNDS = 4  # of: a longer time brings more arrivals, which make it longer


@frozen
class Answer:
    """`tokens` behind the first of each of its `sequences`, which read `context` tokens each at first."""

    tokens: float
    sequences: int
    context: int


def token_seconds(outlook: Outlook, first: FirstToken, mine: Answer, flows: Sequence[Flow]) -> float:
    """Mean seconds a token, from the first token on. The likely number of arrivals counts, not the mean, which rare
    long prompts would raise for everyone."""
    costs, steps, there = outlook.costs, max(mine.tokens, 1.0), first.prompts
    context = first.kv_tokens / len(first.ends) if first.ends else float(mine.context)
    others = sum(min(end, steps) for end in first.ends) / steps + sum(p.step_share >= 1.0 for p in there) / 2
    own = mine.sequences * (costs.decode + costs.kv * (mine.context + steps / 2))
    share = min((p.step_share for p in (*there, *(flow.prompt for flow in flows))), default=1.0)
    prompts = _Prompts(outlook, there, steps, share)
    total, counts = 0.0, [-1] * len(flows)
    for _ in range(_ROUNDS):
        new = [int(flow.rate * total + 0.5) for flow in flows]
        if total and new == counts:
            break
        counts = new
        arrived = list(zip(new, flows, strict=True))
        rows = others + sum(count * min(flow.output, steps / 2) / steps for count, flow in arrived)
        step = costs.step + (costs.decode + costs.kv * context) * rows + own
        total = steps * step + costs.prefill * prompts.computed(arrived)
    return total / steps


class _Prompts:
    """What so many steps compute of the prompts that are there and come. Tokens are weighed by their context."""

    def __init__(self, outlook: Outlook, there: Sequence[Prefill], steps: float, share: float) -> None:
        """`share`: that of prompts with a cap in a step."""
        self._outlook = outlook
        self._steps = steps
        self._share = share
        self._free = sum(self._weight(prompt) for prompt in there if prompt.step_share >= 1.0)
        self._held = sum(self._weight(prompt) for prompt in there if prompt.step_share < 1.0)

    def computed(self, new: Sequence[tuple[int, Flow]]) -> float:
        """Prompts with a cap get its part of a step, or a row's worth of those that compute others; what arrives has
        half of the time."""
        chunk = max(self._outlook.chunk, 1)
        most = self._steps * chunk
        free = min(self._free + sum(n * self._weight(f.prompt) for n, f in new if f.prompt.step_share >= 1.0), most)
        room = (self._steps - free / chunk) * capped_tokens(chunk, self._share) + free / chunk * LEAST
        late = sum(n * self._weight(f.prompt) for n, f in new if f.prompt.step_share < 1.0)
        return free + min(self._held + min(late, room / 2), room, most - free)

    def _weight(self, prompt: Prefill) -> int:
        return weighed(prompt.todo, prompt.done, self._outlook.attention)
