"""How the prefill budget of one step is divided among the prompts that wait for it. Pure arithmetic.

Background prompts get what the others leave. The rest is split among share groups by weight; what a group does not
want goes to the others. Inside a group half is shared evenly, so that every prompt moves each step; what is left goes
to the earliest deadline, then to the shortest, which ends short prompts early and so lowers the mean time to the
first token. No prompt gets everything while another waits. Prompts with a cap get no more than that part of a step
together, which keeps it short for whoever comes during it, and one row's worth beside prompts without a cap, or beside
tokens of an answer to such a prompt, which would else take as long as the prompt did. Shares
below `least` tokens are not worth a row: then fewer groups take part, those that were served least so far, and fewer
prompts of a group, the oldest always among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import NamedTuple

LEAST = 32  # tokens that are worth a row
_LEAST_SHARE = 64  # tokens of a step that a cap leaves where nobody else waits


class Want(NamedTuple):
    """One prompt, in order of age: tokens still to compute, its share group and that group's weight.

    `most`: part of the budget that all with a cap may take at most. `served`: what its group was given over its weight.
    """

    tokens: int
    group: int = 0
    weight: float = 1.0
    deadline: float = inf
    most: float = 1.0
    background: bool = False
    served: float = 0.0


class Served:
    """Prefill tokens over weight that each share group was given. A group that comes is lifted to the least of those
    that are here, so that having been away is no credit; one that left is forgotten."""

    def __init__(self) -> None:
        self._counters: dict[int, float] = {}

    def of(self, groups: Iterable[int]) -> Mapping[int, float]:
        """Of the groups that have prompts now."""
        here = set(groups)
        floor = min((self._counters[group] for group in here if group in self._counters), default=0.0)
        self._counters = {group: self._counters.get(group, floor) for group in here}
        return self._counters

    def add(self, group: int, tokens: int, weight: float) -> None:
        self._counters[group] = self._counters.get(group, 0.0) + tokens / weight


def divide(budget: int, wants: Sequence[Want], least: int = LEAST, *, beside: bool = False) -> list[int]:
    """Tokens for each want: together at most `budget`, none more than it wants and may have. `beside`: an answer to a
    prompt with a cap goes on in this step."""
    grants = [0] * len(wants)
    capped = _capped(wants, budget, least, beside)
    left = budget
    for background in (False, True):
        places = [i for i, want in enumerate(capped) if want.background is background]
        if places and left > 0:
            for place, grant in zip(places, _among(left, [capped[i] for i in places], least), strict=True):
                grants[place] = grant
                left -= grant
    return grants


def whole(budget: int, wants: Sequence[Want]) -> list[int]:
    """Grants where a prompt is computed in one step or not at all: in order, background last, of groups those first
    that were served least, while the budget lasts; one whatever it is."""
    grants = [0] * len(wants)
    left = budget
    for place in sorted(range(len(wants)), key=lambda i: (wants[i].background, wants[i].served, i)):
        if left == budget or wants[place].tokens <= left:
            grants[place] = wants[place].tokens
            left -= wants[place].tokens
    return grants


def _capped(wants: Sequence[Want], budget: int, least: int, beside: bool) -> Sequence[Want]:
    """What those with a cap may have together: their part of the step, or one row's worth beside others."""
    places = [i for i, want in enumerate(wants) if want.most < 1.0]
    if not places:
        return wants
    allowed = capped_tokens(budget, max(wants[i].most for i in places))
    if beside or any(want.most >= 1.0 and not want.background for want in wants):
        allowed = least
    cut = list(wants)
    for place, tokens in zip(places, _among(allowed, [wants[i] for i in places], least), strict=True):
        cut[place] = wants[place]._replace(tokens=tokens)
    return cut


def _among(budget: int, wants: Sequence[Want], least: int) -> list[int]:
    if sum(want.tokens for want in wants) <= budget:
        return [want.tokens for want in wants]
    members: dict[int, list[int]] = {}
    for place, want in enumerate(wants):
        members.setdefault(want.group, []).append(place)
    if len(members) == 1:
        return _in_group(budget, wants, least)
    grants = [0] * len(wants)
    for group, amount in _by_weight(budget, wants, members, least).items():
        places = members[group]
        for place, grant in zip(places, _in_group(amount, [wants[i] for i in places], least), strict=True):
            grants[place] = grant
    return grants


def _by_weight(budget: int, wants: Sequence[Want], members: Mapping[int, Sequence[int]], least: int) -> dict[int, int]:
    """What each group gets. The one served least takes what rounding leaves."""
    asked = {group: sum(wants[i].tokens for i in places) for group, places in members.items()}
    order = sorted(members, key=lambda group: (wants[members[group][0]].served, members[group][0]))
    weights = {group: wants[members[group][0]].weight for group in order[: max(1, budget // least)]}
    amounts = dict.fromkeys(weights, 0)
    left = budget
    while weights and left > 0:
        total, share = sum(weights.values()), left
        for group, weight in list(weights.items()):
            more = min(asked[group] - amounts[group], int(share * weight / total))
            amounts[group] += more
            left -= more
            if amounts[group] == asked[group]:
                del weights[group]
        if left < len(weights) or left == share:
            break
    for group in order:
        more = min(asked[group] - amounts.get(group, 0), left)
        if more > 0:
            amounts[group] = amounts.get(group, 0) + more
            left -= more
    return amounts


def _in_group(budget: int, wants: Sequence[Want], least: int) -> list[int]:
    if sum(want.tokens for want in wants) <= budget:
        return [want.tokens for want in wants]
    grants = [0] * len(wants)
    hurry = sorted(range(1, len(wants)), key=lambda i: (wants[i].deadline, wants[i].tokens, i))
    takers = [0, *hurry][: max(2, budget // (2 * least))]
    left, floor = budget, budget // 2 // len(takers)
    for place in takers:
        grants[place] = min(wants[place].tokens, floor)
        left -= grants[place]
    chosen = set(takers)
    for place in sorted(range(len(wants)), key=lambda i: (i not in chosen, wants[i].deadline, wants[i].tokens, i)):
        more = min(wants[place].tokens - grants[place], left)
        grants[place] += more
        left -= more
    return grants


def capped_tokens(budget: int, most: float) -> int:
    """What prompts with this cap may have together of a step in which nobody else's are computed."""
    return max(int(budget * most), _LEAST_SHARE)


def weighed(tokens: int, context: int, attention: float) -> int:
    """Tokens without context that take as long as these behind `context` others; `attention` is ChunkBudget's."""
    return tokens + int(attention * tokens * (context + tokens / 2))


def unweighed(weight: int, context: int, attention: float) -> int:
    """The most tokens that `weighed` makes no more of than `weight`, but no fewer than are worth a row."""
    if weight <= LEAST:
        return weight
    slope = 1.0 + attention * context
    return max(int(2.0 * weight / (slope + sqrt(slope * slope + 2.0 * attention * weight))), LEAST)
