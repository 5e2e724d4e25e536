"""The index finds what a search through the whole text finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.spec.ngrams import LONGEST, NgramIndex


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def index_of(*parts: list[int]) -> NgramIndex:
    index = NgramIndex()
    for part in parts:
        index.extend(array(part))
    return index


def by_search(tokens: list[int]) -> tuple[int, int]:
    """The latest earlier place behind the last two tokens, else behind the last, and how many agree."""
    end = len(tokens)
    for size in (2, 1):
        for place in range(end - 1, size - 1, -1):
            if tokens[place - size : place] == tokens[end - size :]:
                agree = size
                while size > 1 and agree < min(LONGEST, place) and tokens[place - 1 - agree] == tokens[-1 - agree]:
                    agree += 1
                return place, agree
    return 0, 0


@given(
    parts=st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6),
    bulk=st.lists(st.integers(0, 30), min_size=65, max_size=200) | st.just([]),
    at=st.integers(0, 6),
)
def test_the_best_match_however_the_tokens_come(parts: list[list[int]], bulk: list[int], at: int) -> None:
    parts.insert(at, bulk)
    tokens = [token for part in parts for token in part]
    index = index_of(*parts)
    assert index.tokens.tolist() == tokens
    assert index.find() == by_search(tokens)


def test_a_token_alone_is_a_weak_match() -> None:
    assert index_of([1, 2, 3, 9, 2]).find() == (2, 1)


def test_the_latest_occurrence_of_a_pair_wins() -> None:
    assert index_of([1, 2, 7, 1, 2, 8, 1, 2]).find() == (5, 2)


def test_agreement_is_counted_to_a_bound() -> None:
    assert index_of([*range(40), *range(40)]).find() == (40, LONGEST)


def test_nothing_is_found_in_a_text_without_repetition() -> None:
    assert index_of([]).find() == (0, 0)
    assert index_of([5]).find() == (0, 0)
    assert index_of(list(range(100))).find() == (0, 0)


@pytest.mark.parametrize(
    ("place", "count", "expected"),
    [(1, 2, [2, 3]), (3, 5, [4, 5, 4, 5, 4]), (4, 3, [5, 5, 5])],
)
def test_what_follows_repeats_behind_the_end(place: int, count: int, expected: list[int]) -> None:
    assert index_of([1, 2, 3, 4, 5]).after(place, count) == expected


def test_memory_is_bounded_by_the_tokens() -> None:
    index = index_of([1, 2] * 5000, list(range(100)))
    assert len(index._ones) <= 102
    assert len(index._pairs) <= 103
    assert index.tokens.itemsize * len(index.tokens) == 4 * 10_100
