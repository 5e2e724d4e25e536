"""How long each token takes, against the real scheduler, played with the same cost model."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.control.coming import Flow
from tailrace.control.first_token import FirstToken
from tailrace.control.token_time import Answer, token_seconds
from tailrace.types import Outlook, Prefill
from tests.control.played import COSTS, among_others

PLAIN = COSTS._replace(kv=0.0, attention=0.0)


def expect(seen: Outlook, mine: Answer, flows: list[Flow] | None = None, remaining: list[float] | None = None) -> float:
    first = FirstToken(seen, Prefill(mine.context), remaining or [], flows or [])
    return token_seconds(seen, first, mine, flows or [])


def test_alone_a_token_is_a_step_with_one_row() -> None:
    assert expect(Outlook(costs=PLAIN), Answer(20.0, 1, 100)) == pytest.approx(8e-3 + 2e-3)
    assert expect(Outlook(costs=PLAIN), Answer(20.0, 3, 100)) == pytest.approx(8e-3 + 3 * 2e-3)


def test_who_ends_meanwhile_lengthens_only_the_steps_until_then() -> None:
    seen = Outlook(decodes=2, costs=PLAIN)
    found = expect(seen, Answer(20.0, 1, 100), remaining=[11.0, 1000.0])
    assert found == pytest.approx(8e-3 + 2e-3 * (1 + 1 + 10 / 20))


def test_a_prompt_that_is_left_is_computed_in_its_steps() -> None:
    seen = Outlook(0.0, (Prefill(2000, step_share=0.125),), 0, 0, PLAIN, 200, 400)
    first = FirstToken(seen, Prefill(100))
    left = first.prompts[0].todo
    assert left > 1800
    assert token_seconds(seen, first, Answer(10.0, 1, 100), []) == pytest.approx(10e-3 + 64 * 1.2e-3)  # its cap
    assert token_seconds(seen, first, Answer(1e5, 1, 100), []) == pytest.approx(10e-3, rel=0.01)  # once in a long time


def test_arrivals_slow_it_down_when_they_are_likely() -> None:
    seen, mine = Outlook(costs=PLAIN), Answer(30.0, 1, 100)
    alone = expect(seen, mine)
    assert expect(seen, mine, [Flow(1.0, Prefill(100), 5.0)]) == pytest.approx(alone)  # one in three such answers
    busy = expect(seen, mine, [Flow(5.0, Prefill(100), 5.0)])
    assert busy > alone + 2 * 100 * 1.2e-3 / 30


def token_error(random: Random) -> float:
    """Predicted over played, less one, of an answer among up to eight others."""
    played, tokens, most = among_others(random, longest=60), random.randint(8, 300), random.randint(10, 60)
    seen, remaining = played.given(), played.remaining()
    first = FirstToken(seen, Prefill(tokens), remaining)
    predicted = token_seconds(seen, first, Answer(most - 1.0, 1, tokens), [])
    played.submit("mine", tokens, most)
    played.until_first("mine")
    return predicted / (played.until_end("mine") / (most - 1)) - 1.0


def test_tokens_take_what_was_said() -> None:
    errors = sorted(abs(token_error(Random(seed))) for seed in range(60))
    assert errors[30] < 0.05
    assert errors[54] < 0.3
