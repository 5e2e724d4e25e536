"""Prompt lookup drafts what stood behind the same words before, as far as that has paid."""

from __future__ import annotations

import numpy as np

from tailrace.engine.cost import CostModel
from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.spec.lookup import LENGTH, LookupDrafter
from tailrace.engine.step import Work
from tests.engine.support import Rig, by_definition, request

CHEAP = CostModel(coefficients=np.array([0.01, 0.0, 0.0002, 0.0, 0.0]))
DEAR = CostModel(coefficients=np.array([0.0001, 0.0, 0.01, 0.0, 0.0]))


def sequence(tokens: list[int], most: int = 400) -> Sequence:
    return Group(request(tokens=np.array(tokens, np.int32), max_tokens=most), 0, 0).sequences[0]


def grow(one: Sequence, *tokens: int) -> None:
    for token in tokens:
        one.append(token)


def draft(drafter: LookupDrafter, one: Sequence) -> list[int]:
    return drafter.draft([one], Work(decode=1, kv_tokens=one.known))[0]


def tell(drafter: LookupDrafter, one: Sequence, *tokens: int) -> int:
    """One token a step; the size of the draft behind the last."""
    size = 0
    for token in tokens:
        grow(one, token)
        size = len(draft(drafter, one))
    return size


def test_a_phrase_goes_on_as_it_did() -> None:
    one = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 2, 3, 4])
    assert draft(LookupDrafter(CHEAP), one)[:5] == [5, 6, 7, 8, 9]


def test_nothing_to_go_by_is_no_draft() -> None:
    assert draft(LookupDrafter(CHEAP), sequence(list(range(50)))) == []


def test_no_draft_where_rows_cost_as_much_as_steps() -> None:
    one = sequence([1, 2, 3, 4, 5] * 20)
    assert draft(LookupDrafter(DEAR), one) == []
    assert one.notes is None, "nor any time spent on looking"


def test_longer_agreement_drafts_more() -> None:
    cost = CostModel(coefficients=np.array([0.01, 0.0, 0.002, 0.0, 0.0]))
    text = list(range(30))
    weak = draft(LookupDrafter(cost), sequence([*text, 90, 10]))
    strong = draft(LookupDrafter(cost), sequence([*text, *text[:20]]))
    assert len(weak) < len(strong)


def test_never_more_than_the_answer_may_still_have() -> None:
    assert len(draft(LookupDrafter(CHEAP), sequence([1, 2, 3] * 30, most=100))) == LENGTH
    assert len(draft(LookupDrafter(CHEAP), sequence([1, 2, 3] * 30, most=4))) == 3
    assert draft(LookupDrafter(CHEAP), sequence([1, 2, 3] * 30, most=1)) == []


def test_wrong_guesses_shorten_the_draft_and_right_ones_bring_it_back() -> None:
    cost = CostModel(coefficients=np.array([0.01, 0.0, 0.003, 0.0, 0.0]))
    drafter, one = LookupDrafter(cost), sequence([1, 2, 3, 4, 5, 6, 7] * 8, most=4000)
    hopeful = len(draft(drafter, one))
    for turn in range(60):
        tell(drafter, one, 100 + turn, 1)  # what came behind "1" before is never right
        disappointed = tell(drafter, one, 2)
    again = tell(drafter, one, *[3, 4, 5, 6, 7, 1, 2] * 40)
    assert hopeful > 3
    assert disappointed == 0
    assert again > 3


def test_it_learns_also_while_nothing_is_drafted() -> None:
    """Guesses at a rate that does not pay are made all the same, so that a change is noticed."""
    cost = CostModel(coefficients=np.array([0.01, 0.0, 0.012, 0.0, 0.0]))
    drafter, one = LookupDrafter(cost), sequence([0], most=4000)
    sizes = [tell(drafter, one, token) for turn in range(60) for token in (100 + turn, 1, 2, 3)]
    assert max(sizes[:20]) == 0
    assert max(sizes[-20:]) > 0


def test_tokens_may_come_many_at_a_time() -> None:
    """After a preemption, or while the load forbade drafts, the drafter was not asked for a while."""
    drafter, one = LookupDrafter(CHEAP), sequence([1, 2, 3, 4, 5, 6])
    draft(drafter, one)
    grow(one, *range(100, 180), 1, 2, 3)
    assert draft(drafter, one)[:3] == [4, 5, 6]


def test_the_engine_is_faster_by_it_and_says_the_same() -> None:
    """FakeRunner's answers never repeat, so a prompt that holds the answer stands for one that does."""
    one = request(tokens=np.arange(3, 13, dtype=np.int32), max_tokens=100)
    answer = by_definition(one)
    drafter = LookupDrafter(CHEAP)
    told = _Told(drafter, answer)
    rig = Rig(drafter=told).run(one)
    assert rig.tokens() == answer
    assert rig.loop.stats.steps < 50
    assert rig.loop.stats.accepted_tokens > 50


class _Told:
    """Puts the answer into the index before the sequence's own tokens, as if its prompt had held it."""

    def __init__(self, drafter: LookupDrafter, answer: list[int]) -> None:
        self._drafter = drafter
        self._answer = answer
        self._twin: Sequence | None = None

    def draft(self, sequences: list[Sequence], work: Work) -> list[list[int]]:
        (one,) = sequences
        if self._twin is None:
            self._twin = sequence([*one.tokens[: one.group.prompt_tokens].tolist(), *self._answer, 300], 4000)
            grow(self._twin, *one.tokens[: one.group.prompt_tokens].tolist())
        done = self._twin.known - self._twin.group.prompt_tokens
        grow(self._twin, *one.tokens[done : one.known].tolist())
        return self._drafter.draft([self._twin], work)
