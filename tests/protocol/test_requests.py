"""Bodies to GenerateRequests: bounds, defaults, clamping, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tailrace.backends.fake import fake_tokenizer
from tailrace.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    RequestError,
    TemplateRefused,
    Unsupported,
)
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.sampling import Limits
from tailrace.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tailrace.types import Grammar, GrammarKind
from tests.serving import STRICT, template

LIMITS = Limits(models=("fake", "alias"), max_context=64, vocab_size=259, max_choices=4, max_prompts=3)
TOKENIZER = fake_tokenizer()
HI = [{"role": "user", "content": "hi"}]


def dumps(body: object) -> bytes:
    return json.dumps(body).encode()


def ask_chat(**fields: Any) -> Ask:
    body = parse(ChatRequest, dumps({"messages": HI, **fields}))
    body.check(LIMITS)
    return body.ask("id", template(), TOKENIZER, LIMITS)


def ask(**fields: Any) -> Ask:
    body = parse(CompletionRequest, dumps({"prompt": "hello", **fields}))
    body.check(LIMITS)
    return body.ask("id", TOKENIZER, LIMITS)


def test_defaults() -> None:
    request = ask_chat().requests[0]
    assert (request.model, request.n, request.sampling.temperature, request.sampling.top_k) == ("fake", 1, 1.0, 0)
    assert request.stop.max_tokens == 64 - len(request.prompt)
    assert request.sampling.logprobs is None
    assert ask().requests[0].stop.max_tokens == 16


def test_the_prompt_is_the_rendered_template() -> None:
    prompt = ask_chat().requests[0].prompt
    assert TOKENIZER.decode(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt[0] == 257  # special tokens of the template are tokens, not text


def test_the_seed_is_drawn_when_absent_and_kept_when_given() -> None:
    assert ask(seed=5).requests[0].sampling.seed == 5
    assert ask(seed=-1).requests[0].sampling.seed == 2**64 - 1
    drawn = {ask().requests[0].sampling.seed for _ in range(4)}
    assert len(drawn) == 4
    assert None not in drawn


def test_every_field_arrives() -> None:
    request = ask(
        n=2, max_tokens=7, min_tokens=2, stop=["a", "b", "a"], stop_token_ids=[3], ignore_eos=True, temperature=0.5,
        top_p=0.9, top_k=5, min_p=0.1, typical_p=0.7, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1,
        logit_bias={"7": 3, "5": -100}, logprobs=2, include_stop_str_in_output=True,
    ).requests[0]  # fmt: skip
    sampling, stop = request.sampling, request.stop
    assert (request.n, stop.max_tokens, stop.min_tokens, stop.strings, stop.token_ids) == (2, 7, 2, ("a", "b"), (3,))
    assert (stop.ignore_eos, stop.include_stop_string) == (True, True)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert sampling.typical_p == 0.7
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    assert sampling.logit_bias == ((5, -100), (7, 3))
    assert sampling.logprobs == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"), ({"temperature": 2.01}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"), ({"top_k": -2}, "top_k"), ({"min_p": 1.5}, "min_p"), ({"n": 0}, "n"),
        ({"n": 5}, "n"), ({"n": 10**6}, "n"), ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"), ({"max_tokens": -5}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"), ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"), ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"), ({"stop": ["x"] * 17}, "stop"), ({"stop": "x" * 2000}, "stop"),
        ({"stop_token_ids": [1, 259]}, "stop_token_ids"), ({"stop_token_ids": [-3]}, "stop_token_ids"),
        ({"logit_bias": {"259": 1}}, "logit_bias"), ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"), ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"), ({"stream_options": {}}, "stream_options"),
        ({"seed": 2**64}, "seed"), ({"repetition_penalty": 1e-320}, "repetition_penalty"),
        ({"stop": [f"{i:04}" + "x" * 1000 for i in range(9)]}, "stop"), ({"logit_bias": {"1": True}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"), ({"logit_bias": {"1": "5"}}, "logit_bias"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", [ask, ask_chat])
def test_bounds_hold_on_both_routes(route: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        route(**fields)
    assert caught.value.param == param
    assert caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{}]}, {"audio": {}}, {"modalities": ["text", "audio"]}, {"reasoning_effort": "high"},
        {"suffix": "x"}, {"chat_template": "{{ 1 }}"}, {"grammar": "root ::= x"}, {"json_schema": {"const": 1}},
    ],
)  # fmt: skip
def test_fields_not_built_yet_are_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(Unsupported) as caught:
        ask_chat(**fields)
    assert caught.value.param == next(iter(fields))
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize("route", [ask, ask_chat])
def test_what_constrains_an_answer_is_in_the_request(route: Any) -> None:
    (made,) = route(guided_regex="a+").requests
    assert made.grammar == Grammar(GrammarKind.REGEX, "a+", "guided_regex")
    assert route(response_format={"type": "text"}).requests[0].grammar is None
    with pytest.raises(InvalidRequest) as caught:
        route(guided_choice=[])
    assert caught.value.param == "guided_choice"


def test_their_neutral_values_and_fields_without_effect_are_taken() -> None:
    ask_chat(
        tools=[], tool_choice="none", response_format={"type": "text"}, functions=None, user="u", metadata={"a": "b"},
        store=True, service_tier="auto", parallel_tool_calls=True, reasoning_effort=None,
    )  # fmt: skip


def test_extreme_values_mean_what_the_nearest_possible_one_does() -> None:
    sampling = ask(top_k=2**63, top_p=1e-320).requests[0].sampling
    assert sampling.top_k == LIMITS.vocab_size  # every token
    assert np.float32(sampling.top_p) > 0  # only the best one


def test_a_stop_token_counts_once_however_often_it_is_sent() -> None:
    assert ask(stop_token_ids=[7, 5, 7] * 1000).requests[0].stop.token_ids == (7, 5)


def test_too_many_prompts_are_the_callers_mistake_before_a_place_is_taken() -> None:
    body = parse(CompletionRequest, dumps({"prompt": ["a"] * 4}))
    with pytest.raises(InvalidRequest, match="at most 3"):
        body.check(LIMITS)


def test_more_messages_than_the_context_has_tokens_are_refused_without_rendering() -> None:
    body = parse(ChatRequest, dumps({"messages": [{"role": "user", "content": ""}] * 64}))
    with pytest.raises(ContextLengthExceeded, match="at least 64"):
        body.ask("id", None, TOKENIZER, LIMITS)


def test_chat_logprobs() -> None:
    assert ask_chat(logprobs=True).requests[0].sampling.logprobs == 0
    assert ask_chat(logprobs=True, top_logprobs=20).requests[0].sampling.logprobs == 20
    for fields in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        with pytest.raises(InvalidRequest) as caught:
            ask_chat(**fields)
        assert caught.value.param == "top_logprobs"


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert ask_chat(max_tokens=3, max_completion_tokens=4).requests[0].stop.max_tokens == 4


@pytest.mark.parametrize(("given", "kept"), [(None, 1), (1, 1), (50, 1)])
def test_max_tokens_is_lowered_to_what_the_context_leaves(given: int | None, kept: int) -> None:
    assert ask(prompt=[5] * 63, max_tokens=given).requests[0].stop.max_tokens == kept


@pytest.mark.parametrize("length", [64, 65, 256])
@pytest.mark.parametrize("max_tokens", [1, None, 1000])
def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(length: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        ask(prompt=[5] * length, max_tokens=max_tokens)
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
    assert "64 tokens" in caught.value.message
    assert f"has {length}" in caught.value.message


def test_a_prompt_may_fill_the_context_when_nothing_is_to_be_generated() -> None:
    assert ask(prompt=[5] * 64, max_tokens=0, echo=True).requests[0].stop.max_tokens == 0


def test_a_giant_text_is_refused_without_tokenizing_it() -> None:
    class Untouched:
        def encode_rendered(self, text: str) -> Any:
            raise AssertionError("tokenized")

        def fewest_tokens(self, n_bytes: int) -> int:
            return TOKENIZER.fewest_tokens(n_bytes)

    giant = "x" * 2000
    for body in (
        lambda: parse(CompletionRequest, dumps({"prompt": giant})).ask("id", Untouched(), LIMITS),  # type: ignore[arg-type]
        lambda: parse(ChatRequest, dumps({"messages": [{"role": "user", "content": giant}]})).ask(
            "id",
            template(),
            Untouched(),
            LIMITS,  # type: ignore[arg-type]
        ),
    ):
        with pytest.raises(ContextLengthExceeded) as caught:
            body()
        assert "at least" in caught.value.message


def test_prompts_in_every_form() -> None:
    assert [r.prompt.tolist() for r in ask(prompt="ab").requests] == [[97, 98]]
    assert [r.prompt.tolist() for r in ask(prompt=["a", "b"]).requests] == [[97], [98]]
    assert [r.prompt.tolist() for r in ask(prompt=[1, 2]).requests] == [[1, 2]]
    several = ask(prompt=[[1], [2, 3]], n=2)
    assert [r.prompt.tolist() for r in several.requests] == [[1], [2, 3]]
    assert [r.id for r in several.requests] == ["id-0", "id-1"]
    assert several.prompt_tokens == 3
    assert several.requests[0].prompt.dtype == np.int32


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 259]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [[1], [10**7]]}, "prompt[1]"),
        ({"prompt": [10**30]}, "prompt"), ({"prompt": ["a"] * 4}, "prompt"), ({"prompt": ""}, "prompt"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 2, "best_of": 10**6}, "best_of"), ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
    ],
)  # fmt: skip
def test_completions_refuse(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_echo() -> None:
    assert ask(prompt="ab", echo=True).echo == ("ab",)
    assert ask(prompt=[99, 100], echo=True).echo == ("cd",)
    assert ask(prompt="ab").echo == ()
    assert ask(prompt="ab", echo=True, logprobs=1).requests[0].prompt_logprobs == 1
    assert ask(prompt="ab", logprobs=1).requests[0].prompt_logprobs is None


def test_model_names() -> None:
    assert ask(model="alias").requests[0].model == "alias"
    assert ask().requests[0].model == "fake"
    with pytest.raises(ModelNotFound) as caught:
        ask(model="nope")
    assert caught.value.status == 404


def rendered(messages: Any, **fields: Any) -> str:
    body = parse(TokenizeRequest, dumps({"messages": messages, **fields}))
    return TOKENIZER.decode(body.tokens(template(), TOKENIZER, LIMITS))


def test_text_parts_and_generation_prompt() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert rendered(parts, add_generation_prompt=False) == "<|im_start|>user\na\nb<|im_end|>\n"


def test_continuing_the_last_message() -> None:
    turns = [*HI, {"role": "assistant", "content": "Yes,"}]
    text = rendered(turns, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nYes,")
    with pytest.raises(InvalidRequest) as caught:
        rendered(turns, continue_final_message=True, add_generation_prompt=True)
    assert caught.value.param == "continue_final_message"


def test_the_templates_own_refusal_is_the_answer() -> None:
    body = parse(ChatRequest, dumps({"messages": [*HI, *HI]}))
    with pytest.raises(RequestError) as caught:
        body.ask("id", template(STRICT), TOKENIZER, LIMITS)
    assert caught.value.status == 400
    assert "roles must alternate" in caught.value.message


def test_variables_of_the_template() -> None:
    chat = template("{{ messages[0].content }}{{ mood }}")
    body = parse(ChatRequest, dumps({"messages": HI, "chat_template_kwargs": {"mood": "!"}}))
    assert TOKENIZER.decode(body.ask("id", chat, TOKENIZER, LIMITS).requests[0].prompt) == "hi!"
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message"):
        with pytest.raises(InvalidRequest) as caught:
            ask_chat(chat_template_kwargs={name: 1})
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("name", ["self", "clock", "values", "context", "~budget", ""])
def test_any_other_name_may_be_a_variable_of_the_template(name: str) -> None:
    assert (
        ask_chat(chat_template_kwargs={name: 1}).requests[0].prompt.tolist() == ask_chat().requests[0].prompt.tolist()
    )


def test_a_template_that_makes_nothing_of_the_messages() -> None:
    body = parse(ChatRequest, dumps({"messages": HI, "stream": True}))
    with pytest.raises(TemplateRefused, match="empty prompt"):
        body.ask("id", template("{% if false %}{{ messages }}{% endif %}"), TOKENIZER, LIMITS)


def test_no_template() -> None:
    with pytest.raises(InvalidRequest, match="--chat-template FILE"):
        parse(ChatRequest, dumps({"messages": HI})).ask("id", None, TOKENIZER, LIMITS)


def test_tokenize_and_chat_see_the_same_ids() -> None:
    body = parse(TokenizeRequest, dumps({"messages": HI}))
    assert body.tokens(template(), TOKENIZER, LIMITS).tolist() == ask_chat().requests[0].prompt.tolist()
    text = TOKENIZER.decode(ask_chat().requests[0].prompt)
    assert ask(prompt=text).requests[0].prompt.tolist() == ask_chat().requests[0].prompt.tolist()


def test_tokenize_takes_null_as_absent() -> None:
    body = parse(TokenizeRequest, dumps({"prompt": "hi", "messages": None}))
    assert body.tokens(template(), TOKENIZER, LIMITS).tolist() == [104, 105]


def test_tokenize_needs_one_of_two() -> None:
    for body in ({}, {"prompt": None, "messages": None}, {"prompt": "x", "messages": HI}):
        with pytest.raises(InvalidRequest):
            parse(TokenizeRequest, dumps(body)).tokens(template(), TOKENIZER, LIMITS)


def test_detokenize() -> None:
    assert parse(DetokenizeRequest, b'{"tokens": [104, 105]}').text(TOKENIZER, LIMITS) == "hi"
    with pytest.raises(InvalidRequest):
        parse(DetokenizeRequest, b'{"tokens": [259]}').text(TOKENIZER, LIMITS)


class Enclosed:
    """A tokenizer that puts an end token behind whole texts, as those of encoders do."""

    fewest_tokens = staticmethod(TOKENIZER.fewest_tokens)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> Any:
        ids = TOKENIZER.encode(text, add_special=False, parse_special=parse_special)
        return np.append(ids, 258) if add_special else ids

    def encode_rendered(self, text: str) -> Any:
        return self.encode(text, add_special=False, parse_special=True)


@pytest.mark.parametrize(
    ("fields", "generates", "ids"),
    [
        ({}, True, [97, 98]),
        ({}, False, [97, 98, 258]),
        ({"add_special_tokens": False}, False, [97, 98]),
    ],
)
def test_tokens_are_those_of_what_the_model_makes(fields: dict[str, Any], generates: bool, ids: list[int]) -> None:
    request = TokenizeRequest(prompt="ab", **fields)
    assert request.tokens(None, Enclosed(), LIMITS, generates=generates).tolist() == ids  # type: ignore[arg-type]
