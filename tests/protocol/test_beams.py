from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace.types import BeamSearch
from tests.protocol.test_scoring import ask, chat_ask

ROUTES = [(ask, {"prompt": "ab"}), (chat_ask, {})]


@pytest.mark.parametrize(("make", "prompt"), ROUTES)
def test_beams_are_made_and_the_best_are_shown(make: Any, prompt: dict[str, Any]) -> None:
    found = make(**prompt, use_beam_search=True, n=2, best_of=4, temperature=0, seed=3)
    (request,) = found.requests
    assert (request.beams, request.n, found.n, found.keep, found.sorted) == (BeamSearch(), 4, 4, 2, True)
    assert (request.sampling.logprobs, found.logprobs) == (None, False)
    plain = make(**prompt, n=2)
    assert (plain.requests[0].beams, plain.keep, plain.sorted) == (None, 0, False)
    assert make(**prompt, use_beam_search=False, length_penalty=1, early_stopping=False).requests[0].beams is None


@pytest.mark.parametrize(("asked", "rule"), [(True, True), (False, False), ("never", None), (None, False)])
def test_its_rules_arrive(asked: Any, rule: bool | None) -> None:
    fields = {"prompt": "ab", "use_beam_search": True, "length_penalty": 0.5, "early_stopping": asked}
    assert ask(**fields).requests[0].beams == BeamSearch(0.5, rule)


@pytest.mark.parametrize("name", ["logit_bias", "guided_regex", "bad_words", "repetition_penalty", "min_tokens"])
def test_what_says_which_tokens_may_come_holds_for_beams(name: str) -> None:
    value = {"logit_bias": {"5": 1}, "guided_regex": "a+", "bad_words": ["x"], "repetition_penalty": 1.2}.get(name, 2)
    assert ask(prompt="ab", use_beam_search=True, **{name: value}).requests[0].beams is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"), ({"temperature": 0.5}, "temperature"), ({"top_p": 0.9}, "top_p"),
        ({"top_k": 4}, "top_k"), ({"min_p": 0.1}, "min_p"), ({"typical_p": 0.5}, "typical_p"), ({"stop": "x"}, "stop"),
        ({"best_of": 5}, "best_of"), ({"n": 3, "best_of": 2}, "best_of"), ({"length_penalty": 11}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping"), ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("make", "prompt"), ROUTES)
def test_refused(make: Any, prompt: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make(**prompt, **{"use_beam_search": True, **fields})
    assert (caught.value.param or "").startswith(param)


def test_no_search_for_no_tokens() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(prompt="ab", use_beam_search=True, max_tokens=0)
    assert caught.value.param == "max_tokens"
