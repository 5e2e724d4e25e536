"""Prompts have the number of tokens they are asked for, and equal keys give equal text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.bench.pieces import LETTERS, OPENING, WORDS, Pieces, Segment

IDS = Pieces(ids=tuple(range(500, 600)), how="ids")
segments = st.lists(st.builds(Segment, st.sampled_from(("a", "b", "c")), st.integers(1, 300)), min_size=1, max_size=6)


@given(segments)
def test_ids_are_exactly_as_many_as_asked(wanted: list[Segment]) -> None:
    prompt = IDS.prompt(wanted, "salt")
    assert len(prompt) == sum(s.tokens for s in wanted) == IDS.asked(wanted)
    assert set(prompt) <= set(IDS.ids)


@given(segments, st.integers(1, 40))
def test_text_counts_its_overhead(wanted: list[Segment], overhead: int) -> None:
    pieces = Pieces(texts=LETTERS, overhead=overhead, how="tokenize")
    prompt = pieces.prompt(wanted, "salt")
    counted = overhead + len(prompt) - len(OPENING)
    assert counted == pieces.asked(wanted) == max(overhead, sum(s.tokens for s in wanted))


@given(segments, st.floats(0.7, 3.0), st.integers(0, 40))
def test_with_a_mean_cost_the_error_stays_below_one_piece(wanted: list[Segment], cost: float, overhead: int) -> None:
    pieces = Pieces(overhead=overhead, cost=cost, how="usage")
    total = sum(s.tokens for s in wanted)
    if total > overhead:
        assert abs(pieces.asked(wanted) - total) <= cost / 2 + 0.5


def test_equal_keys_are_equal_text_within_a_run_only() -> None:
    first = IDS.prompt([Segment("prefix", 50), Segment("own/1", 10)], "salt")
    second = IDS.prompt([Segment("prefix", 50), Segment("own/2", 10)], "salt")
    assert first[:50] == second[:50]
    assert first[50:] != second[50:]
    assert IDS.prompt([Segment("prefix", 50)], "other") != first[:50]


def test_words_are_distinct_and_stay_apart_when_joined() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(word[0] == " " and word[1:].isalpha() for word in WORDS)
