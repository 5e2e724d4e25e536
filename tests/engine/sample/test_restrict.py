from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.engine.grammar.masks import Masks
from tailrace.engine.sample.restrict import Restriction, joined, restriction
from tailrace.engine.sequence import Group, Sequence
from tailrace.types import SamplingParams, StopConditions
from tests.engine.support import request

VOCAB, END = 70, frozenset({2})


def made(said: tuple[int, ...] = (), minimum: int = 0, **sampling: Any) -> tuple[Restriction, Sequence]:
    """A choice that has said so much, and what its request restricts."""
    asked = request(
        tokens=np.array([7, 8], np.int32),
        sampling=SamplingParams(**sampling),
        stop=StopConditions(max_tokens=16, min_tokens=minimum, token_ids=(3,)),
    )
    sequence = Group(asked, 0, 1).sequences[0]
    sequence.tokens = np.array([7, 8, *said, *[0] * 8], np.int32)
    sequence.known = 2 + len(said)
    found = restriction(asked, VOCAB, END)
    assert found is not None
    return found, sequence


def tokens(bits: np.ndarray[Any, Any]) -> set[int]:
    return {token for token in range(len(bits) * 32) if bits[token >> 5] >> np.uint32(token & 31) & np.uint32(1)}


def test_nothing_to_restrict() -> None:
    assert restriction(request(), VOCAB, END) is None


def test_only_allowed_tokens() -> None:
    one, sequence = made(allowed_token_ids=(0, 31, 32, 69))
    assert tokens(one.row(sequence, 0, None)) == {0, 31, 32, 69}


def test_a_bad_word_loses_its_last_token_behind_the_others() -> None:
    words = ((5,), (10, 11), (10, 11, 12))
    every = set(range(VOCAB))
    for said, gone in (((), {5}), ((10,), {5, 11}), ((10, 11), {5, 12}), ((11, 10), {5, 11}), ((10, 9), {5})):
        one, sequence = made(said, bad_words=words)
        assert tokens(one.row(sequence, 0, None)) == every - gone, said


def test_the_prompt_is_not_part_of_a_word() -> None:
    one, sequence = made(bad_words=((8, 9),))
    assert 9 in tokens(one.row(sequence, 0, None))


def test_guesses_count_as_said() -> None:
    one, sequence = made((10,), bad_words=((10, 11, 12),))
    sequence.tokens[3] = 11
    assert 12 in tokens(one.row(sequence, 0, None))
    assert 12 not in tokens(one.row(sequence, 1, None))


def test_ends_wait_for_the_minimum() -> None:
    one, sequence = made((9,), minimum=3, bad_words=((5,),))
    assert not {2, 3} & tokens(one.row(sequence, 1, None))
    assert {2, 3} <= tokens(one.row(sequence, 2, None))


def test_an_answer_always_goes_on() -> None:
    one, sequence = made(allowed_token_ids=(2, 5), bad_words=((5,),), minimum=4)
    assert tokens(one.row(sequence, 0, None)) == {2, 5}
    grammar = np.array([1 << 9, 0, 0], np.uint32)
    assert tokens(one.row(sequence, 0, grammar)) == {9}


def test_rows_join_those_of_grammars() -> None:
    one, sequence = made(bad_words=((5,),))
    masks = Masks(np.array([[1 << 5 | 1 << 6, 0, 0]], np.uint32), np.array([-1, 0, -1], np.int32))
    found = joined([one, one, None], [sequence] * 3, [0, 0, 0], masks)
    assert found.rows.tolist() == [1, 2, -1]
    assert tokens(found.bits[1]) == set(range(VOCAB)) - {5}
    assert tokens(found.bits[2]) == {6}
    assert masks.rows.tolist() == [-1, 0, -1]
    alone = joined([None, one], [sequence] * 2, [0, 0], None)
    assert alone.rows.tolist() == [-1, 0]
