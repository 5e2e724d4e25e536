from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.errors import RequestError
from tailrace.protocol.body import parse
from tailrace.protocol.completions import CompletionRequest
from tailrace.types import SamplingParams
from tests.protocol.test_scoring import LIMITS, TOKENIZER


def sampling(**fields: Any) -> SamplingParams:
    body = parse(CompletionRequest, json.dumps({"prompt": "ab", **fields}).encode())
    return body.ask("id", TOKENIZER, LIMITS).requests[0].sampling


def test_words_as_they_are_and_behind_a_space() -> None:
    word = TOKENIZER.encode("cat", add_special=False, parse_special=False).tolist()
    spaced = TOKENIZER.encode(" cat", add_special=False, parse_special=False).tolist()
    assert sampling(bad_words=[" cat", "cat"]).bad_words == (tuple(word), tuple(spaced))
    assert sampling(bad_words=[]).bad_words == ()


def test_allowed_ids_once_each() -> None:
    assert sampling(allowed_token_ids=[9, 3, 9]).allowed_token_ids == (3, 9)
    assert sampling().allowed_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bad_words": [""]}, "bad_words"), ({"bad_words": ["  "]}, "bad_words"), 
        ({"bad_words": ["x" * 129]}, "bad_words"),
        ({"bad_words": ["x"] * 129}, "bad_words"), ({"bad_words": "x"}, "bad_words"), 
        ({"bad_words": [3]}, "bad_words[0]"),
        ({"allowed_token_ids": []}, "allowed_token_ids"), ({"allowed_token_ids": [259]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [4], "guided_regex": "a+"}, "allowed_token_ids"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(**fields)
    assert caught.value.param == param
