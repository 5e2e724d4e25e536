from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tailrace.backends.fake import fake_tokenizer
from tailrace.errors import RequestError
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.sampling import Limits
from tailrace.protocol.scoring import best, prompt_logprobs
from tailrace.types import TokenLogprob
from tests.serving import template

LIMITS = Limits(("fake",), max_context=64, vocab_size=259, max_choices=4)
TOKENIZER = fake_tokenizer()


def ask(**fields: Any) -> Ask:
    body = parse(CompletionRequest, json.dumps(fields).encode())
    body.check(LIMITS)
    return body.ask("id", TOKENIZER, LIMITS)


def chat_ask(**fields: Any) -> Ask:
    body = parse(ChatRequest, json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode())
    body.check(LIMITS)
    return body.ask("id", template("{{ messages[0]['content'] }}"), TOKENIZER, LIMITS)


def test_prompt_logprobs_are_by_token_id_with_ranks() -> None:
    tokens = [
        TokenLogprob(5, b"a", None),
        TokenLogprob(6, b"b", -1.5, ((6, b"b", -1.5), (7, b"c", -2.0))),
        TokenLogprob(8, b"\xff", float("-inf"), ((6, b"b", -0.5), (7, b"c", -2.0))),
    ]
    assert prompt_logprobs(tokens, 1) == [
        None,
        {"6": {"logprob": -1.5, "rank": 1, "decoded_token": "b"}},
        {
            "6": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            "8": {"logprob": -9999.0, "rank": None, "decoded_token": "\ufffd"},
        },
    ]


def test_the_best_come_first_and_equals_in_order() -> None:
    assert best([-3.0, -1.0, -1.0, -2.0], 3) == [1, 2, 3]


def test_best_of_makes_more_than_it_shows() -> None:
    found = ask(prompt="ab", n=2, best_of=4)
    assert (found.n, found.keep, found.logprobs, found.requests[0].n) == (4, 2, False, 4)
    assert found.requests[0].sampling.logprobs == 0
    same = ask(prompt="ab", n=2, best_of=2)
    assert (same.n, same.keep, same.requests[0].sampling.logprobs) == (2, 0, None)


def test_a_prompt_keeps_its_last_tokens() -> None:
    whole = ask(prompt="abcdef").requests[0].prompt
    cut = ask(prompt="abcdef", truncate_prompt_tokens=3, echo=True)
    assert cut.requests[0].prompt.tolist() == whole[-3:].tolist()
    assert cut.echo == ("def",)
    assert ask(prompt=[5] * 10, truncate_prompt_tokens=64).requests[0].prompt.tolist() == [5] * 10
    assert len(chat_ask(truncate_prompt_tokens=2).requests[0].prompt) == 2


def test_minus_one_leaves_room_for_the_answer() -> None:
    assert len(ask(prompt="x" * 200, truncate_prompt_tokens=-1, max_tokens=14).requests[0].prompt) == 50
    assert (
        len(chat_ask(messages=[{"role": "user", "content": "y" * 99}], truncate_prompt_tokens=-1).requests[0].prompt)
        == 63
    )


@pytest.mark.parametrize("make", [ask, chat_ask])
def test_a_salt_and_scored_prompts_reach_the_backend(make: Any) -> None:
    prompt = {"prompt": "ab"} if make is ask else {}
    (request,) = make(**prompt, cache_salt="mine", prompt_logprobs=3).requests
    assert (request.salt, request.prompt_logprobs) == (b"mine", 3)
    (plain,) = make(**prompt).requests
    assert (plain.salt, plain.prompt_logprobs) == (b"", None)
    assert isinstance(request.prompt, np.ndarray)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": ""}, "cache_salt"), ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"), ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"typical_p": 0}, "typical_p"), ({"typical_p": 1.1}, "typical_p"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], param: str) -> None:
    for make, prompt in ((ask, {"prompt": "ab"}), (chat_ask, {})):
        with pytest.raises(RequestError) as caught:
            make(**prompt, **fields)
        assert caught.value.param == param
