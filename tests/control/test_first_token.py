"""When a started prompt has its first token, against the real scheduler, played with the same cost model."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.control.coming import Flow
from tailrace.control.first_token import FirstToken
from tailrace.types import Outlook, Prefill
from tests.control.played import COSTS, Played, among_others


def first_token_error(random: Random) -> float:
    """Predicted over played, less one, for a prompt that comes among up to eight others."""
    played, tokens = among_others(random), random.randint(8, 3000)
    predicted = FirstToken(played.given(), Prefill(tokens), played.remaining()).seconds
    played.submit("mine", tokens, 5)
    return predicted / played.until_first("mine") - 1.0


def test_the_first_token_comes_when_it_was_said() -> None:
    """Mostly: where a grant ends a prompt one step sooner or later, a short wait is off by a step."""
    errors = sorted(abs(first_token_error(Random(seed))) for seed in range(60))
    assert errors[30] < 0.02
    assert errors[54] < 0.15
    assert errors[-1] < 0.5


def beside_arrivals(seed: int, rate: float, flows: list[Flow]) -> float:
    """Predicted over played, of a long prompt beside which short ones keep arriving."""
    random, played = Random(seed), Played()
    predicted = FirstToken(played.given(), Prefill(2000), (), flows).seconds
    played.submit("mine", 2000, 5)
    due, number = random.expovariate(rate), 0
    while "mine" not in played.first:
        while due <= played.now:
            played.submit(f"o{number}", 150, 20)
            due, number = due + random.expovariate(rate), number + 1
        played.step()
    return predicted / played.first["mine"]


def test_what_arrives_meanwhile_is_part_of_it() -> None:
    rate = 2.5
    seen = [beside_arrivals(seed, rate, [Flow(rate, Prefill(150), 20.0)]) for seed in range(30)]
    blind = [beside_arrivals(seed, rate, []) for seed in range(30)]
    assert median(seen) == pytest.approx(1.0, abs=0.1)
    assert median(blind) < 0.8


SIZES = st.tuples(st.integers(1, 3000), st.integers(0, 4000), st.integers(0, 2))
PROMPTS = SIZES.map(lambda size: Prefill(*size))


@given(st.lists(PROMPTS, max_size=6), PROMPTS, st.lists(st.floats(1, 200), max_size=8), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_it_is_never_sooner_than_the_work_allows(
    others: list[Prefill], mine: Prefill, remaining: list[float], rate: float
) -> None:
    seen = Outlook(0.1, tuple(others), max(len(remaining) - len(others), 0), 500, COSTS, 200, 400, 1e-4)
    found = FirstToken(seen, mine, remaining, [Flow(rate, Prefill(100), 10.0)])
    own = COSTS.step + COSTS.prefill * mine.todo + COSTS.attention * mine.todo * (mine.done + mine.todo / 2)
    assert found.seconds >= 0.1 + own / 2
    assert isfinite(found.seconds)
    assert all(end > 0 for end in found.ends)
    assert all(prompt.todo > 0 for prompt in found.prompts)
    assert found.kv_tokens >= 0


def test_alone_it_is_the_cost_of_its_chunks() -> None:
    seen = Outlook(0.1, (), 0, 0, COSTS, 200, 400)
    expected = 0.1 + 8e-3 + 300 * 1.2e-3 + 8e-8 * 300 * 150
    assert FirstToken(seen, Prefill(300)).seconds == pytest.approx(expected)
    assert FirstToken(seen, Prefill(300, 1000)).seconds == pytest.approx(expected + 8e-8 * 300 * 1000)


@given(PROMPTS, st.floats(0, 200))
def test_what_needs_no_playing_comes_to_the_same(mine: Prefill, rate: float) -> None:
    """`above` names a group that is not there: what is alone is played then."""
    alone = Outlook(0.1, (), 0, 0, COSTS, 200, 200, 1e-4)
    played = replace(alone, above=frozenset((99,)), short_chunk=200)
    mine = mine._replace(step_share=1.0, background=False)
    one, other = (FirstToken(seen, mine, (), [Flow(rate, Prefill(100), 10.0)]) for seen in (alone, played))
    assert one.seconds == pytest.approx(other.seconds)
    assert (one.prompts, one.ends, one.kv_tokens) == (other.prompts, other.ends, other.kv_tokens)


def test_a_very_long_prompt_is_played_in_part() -> None:
    seen = Outlook(0.0, (), 0, 0, COSTS._replace(attention=0.0), 200, 400)
    assert FirstToken(seen, Prefill(100_000)).seconds == pytest.approx(250 * (8e-3 + 400 * 1.2e-3), rel=0.01)
