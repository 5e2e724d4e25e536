"""How the prefill budget of one step is divided among the prompts that wait for it. Pure arithmetic.

Half of the budget is shared by weight, so that every prompt moves each step; what is left goes to the shortest
first, which ends short prompts early and so lowers the mean time to the first token. No prompt gets everything
while another waits. Shares below `least` tokens are not worth a row: then fewer prompts take part, the oldest
always among them, so that none starves behind a stream of short ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """One prompt, in order of age: tokens still to compute, its share group and that group's weight."""

    tokens: int
    group: int = 0
    weight: float = 1.0


def divide(budget: int, wants: Sequence[Want], least: int = 32) -> list[int]:
    """Tokens for each want: together at most `budget`, none more than it wants, nothing left over needlessly."""
    grants = [0] * len(wants)
    if sum(want.tokens for want in wants) <= budget:
        return [want.tokens for want in wants]
    by_length = sorted(range(1, len(wants)), key=lambda i: (wants[i].tokens, i))
    takers = [0, *by_length][: max(2, budget // (2 * least))]
    left = budget
    for index, floor in zip(takers, _floors(budget // 2, [wants[i] for i in takers]), strict=True):
        grants[index] = min(wants[index].tokens, floor)
        left -= grants[index]
    chosen = set(takers)
    for index in sorted(range(len(wants)), key=lambda i: (i not in chosen, wants[i].tokens, i)):
        more = min(wants[index].tokens - grants[index], left)
        grants[index] += more
        left -= more
    return grants


def _floors(amount: int, wants: list[Want]) -> list[int]:
    """Split by group weight, evenly inside a group."""
    members = Counter(want.group for want in wants)
    weights = [want.weight / members[want.group] for want in wants]
    total = sum(weights)
    return [int(amount * weight / total) for weight in weights]
