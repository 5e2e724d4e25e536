"""Sampling parameters are those of HTTP, and a mistake names the field."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace import SamplingParams
from tailrace.errors import InvalidRequest
from tailrace.llm.params import spread
from tailrace.protocol.beams import Beams
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.prompt import PromptFields
from tailrace.protocol.restrict import Restricted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "temperature should be less than or equal to 2"),
        ({"temperature": "hot"}, "temperature should be a valid number"),
        ({"temperature": float("nan")}, "temperature should be a finite number"),
        ({"max_tokens": -1}, "max_tokens should be greater than or equal to 0"),
        ({"top_p": 0}, "top_p should be greater than 0"),
        ({"logit_bias": {"7": "much"}}, "logit_bias"),
        ({"stop": [1]}, "stop"),
        ({"temprature": 1}, "unknown sampling parameter temprature; the nearest known one is temperature"),
        ({"best_off": 3}, "unknown sampling parameter best_off; the nearest known one is best_of"),
        ({"best_of": 0}, "best_of should be greater than or equal to 1"),
        ({"length_penalty": 11}, "length_penalty should be less than or equal to 10"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"bad_words": [1]}, "bad_words[0] should be a valid string"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids[0] should be a valid integer"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens should be greater than or equal to -1"),
        ({"cache_salt": ""}, "cache_salt should have at least 1 character"),
        ({"prompt_logprobs": -1}, "prompt_logprobs should be greater than or equal to 0"),
    ],
)
def test_a_wrong_value_names_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.message.startswith(message)
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0].split("[")[0] == next(iter(fields))


def test_fields_are_those_of_both_routes_and_checked_by_the_same_rules() -> None:
    own = set(SamplingParams.model_fields)
    assert own > set(Beams.model_fields) | set(PromptFields.model_fields) | set(Restricted.model_fields)
    assert own <= set(CompletionRequest.model_fields)
    assert own <= set(ChatRequest.model_fields)
    for name, field in {**ChatRequest.model_fields, **CompletionRequest.model_fields}.items():
        if name in own - {"max_tokens"}:
            assert SamplingParams.model_fields[name].metadata == field.metadata


def test_python_values_are_taken_where_json_has_others() -> None:
    params = SamplingParams(stop=("a", "b"), stop_token_ids={4}, logit_bias={7: -1.5}, allowed_token_ids=(4, 5))
    assert params.allowed_token_ids == [4, 5]
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (["a", "b"], [4], {"7": -1.5})


def test_params_are_frozen_and_can_be_varied() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={7: 1.0})
    other = params.but(seed=3)
    assert (other.temperature, other.logit_bias, other.seed, params.seed) == (0.5, {"7": 1.0}, 3, None)
    assert params.but() is params
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1  # type: ignore[misc]


def test_one_for_all_or_one_for_each() -> None:
    one = SamplingParams(seed=1)
    assert [p.seed for p in spread(one, {}, 3)] == [1, 1, 1]
    assert [p.seed for p in spread([one, one.but(seed=2)], {}, 2)] == [1, 2]
    assert [p.n for p in spread([one, one], {"n": 2}, 2)] == [2, 2]
    assert [p.seed for p in spread(None, {"seed": 5}, 1)] == [5]
    with pytest.raises(InvalidRequest, match="sampling_params has 1 entries for 2 prompts"):
        spread([one], {}, 2)
