"""Bodies that are not what they should be: one sentence that names the field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Shape, _path, parse, unknown_fields
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tailrace.protocol.vectors import RerankRequest

HI = b'"messages": [{"role": "user", "content": "hi"}]'


def refusal(body: bytes, shape: type = ChatRequest) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        parse(shape, body)
    return caught.value.param, caught.value.message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1", b"{" + HI, b"\xff", b'"\\ud800"', b"{" + HI + b', "temperature": NaN}',
     b"{" + HI + b', "temperature": Infinity}', b"{" + HI + b', "temperature": 1e999}', b"[" * 100_000],
)  # fmt: skip
def test_not_json(body: bytes) -> None:
    param, message = refusal(body)
    assert param is None
    assert "not valid JSON" in message


def test_how_deep_a_body_may_be() -> None:
    def nested(levels: int) -> bytes:
        return b"{" + HI + b', "x": ' + b'{"a": [' * levels + b"]}" * levels + b"}"

    parse(ChatRequest, nested(99))
    assert refusal(nested(100)) == (None, "The request body is nested more than 200 levels deep")
    parse(ChatRequest, b"{" + HI + b', "x": [' + b", ".join([b'[{"a": {}}]'] * 500) + b"]}")


@pytest.mark.parametrize("body", [b"[]", b"3", b'"text"', b"null"])
def test_not_an_object(body: bytes) -> None:
    assert refusal(body) == (None, "The request body must be a JSON object")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (b'"messages": "x"', "messages", "messages should be a valid list"),
        (b'"messages": [7]', "messages[0]", "messages[0] should be an object"),
        (b'"messages": [{"content": "x"}]', "messages[0].role", "messages[0].role is missing"),
        (b'"messages": [{"role": "user", "content": 7}]', "messages[0].content",
         "messages[0].content should be a valid string or should be a valid list"),
        (b'"messages": [{"role": "user", "content": [{"text": "x"}]}]', "messages[0].content[0].type",
         "messages[0].content[0].type is missing"),
        (HI + b', "temperature": "hot"', "temperature", "temperature should be a valid number"),
        (HI + b', "temperature": true', "temperature", "temperature should be a valid number"),
        (HI + b', "n": 1.5', "n", "n should be a valid integer"),
        (HI + b', "n": "2"', "n", "n should be a valid integer"),
        (HI + b', "max_tokens": 0', "max_tokens", "max_tokens should be greater than or equal to 1"),
        (HI + b', "stop": ["a", 1]', "stop[1]", "stop[1] should be a valid string"),
        (HI + b', "stop": 5', "stop", "stop should be a valid string or should be a valid list"),
        (HI + b', "stream": "yes"', "stream", "stream should be a valid boolean"),
        (HI + b', "seed": 1e300', "seed", "seed should be a valid integer"),
    ],
)  # fmt: skip
def test_wrong_types_name_the_field(fields: bytes, param: str, message: str) -> None:
    assert refusal(b"{" + fields + b"}") == (param, message)


@pytest.mark.parametrize("prompt", [b"7", b"null", b"[]", b"[[]]", b'[1, "a"]', b"[1.5]", b"[true]", b'[["a"]]', b"{}"])
def test_prompts_of_no_known_form(prompt: bytes) -> None:
    param, message = refusal(b'{"prompt": %s}' % prompt, CompletionRequest)
    assert param == "prompt"
    assert message == (
        "prompt should be a string, a list of strings, a list of token ids or a list of such lists, none empty"
    )


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_value_of_any_field_is_taken_or_refused_as_invalid(value: object) -> None:
    for name in (*ChatRequest.model_fields, *CompletionRequest.model_fields):
        for shape, base in ((ChatRequest, {"messages": []}), (CompletionRequest, {"prompt": "x"})):
            body = orjson.dumps({**base, name: value})
            try:
                parse(shape, body)
            except InvalidRequest as error:
                assert error.param


@pytest.mark.parametrize(
    ("documents", "param", "message"),
    [
        ([], "documents", "documents should have at least 1 item, not 0"),
        ([{"text": 5}], "documents[0].text", "documents[0].text should be a valid string"),
        (["a", {}], "documents[1].text", "documents[1].text is missing"),
        ([5], "documents[0]", "documents[0] should be a valid string or should be an object"),
    ],
)
def test_no_name_of_ours_or_of_a_library_is_in_a_refusal(documents: list[Any], param: str, message: str) -> None:
    body = orjson.dumps({"query": "q", "documents": documents})
    assert refusal(body, RerankRequest) == (param, message)


def test_null_means_absent() -> None:
    nulls = ",".join(f'"{name}": null' for name in ChatRequest.model_fields if name != "messages")
    body = parse(ChatRequest, b"{" + HI + b"," + nulls.encode() + b"}")
    assert (body.n, body.stop, body.stream) == (None, None, None)


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (ChatRequest, {"messages": [0] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [0] * 1000}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "", "tool_calls": [0] * 1000}]}),
        (ChatRequest, {"messages": [], "stop": [0] * 1000}),
        (ChatRequest, {"messages": [], "stop_token_ids": ["0"] * 1000}),
        (ChatRequest, {"messages": [], "logit_bias": {str(i): "x" for i in range(1000)}}),
        (CompletionRequest, {"prompt": [0, "x"] * 1000}),
        (TokenizeRequest, {"messages": [0] * 1000}),
        (DetokenizeRequest, {"tokens": ["0"] * 1000}),
    ],
)
def test_the_first_wrong_entry_of_many_is_enough(shape: type[Shape], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        shape.model_validate(body)
    assert caught.value.error_count() <= 2  # a list that may also be a string brings one more


def test_a_long_key_of_the_clients_is_not_sent_back() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ChatRequest, b"{" + HI + b', "stream_options": {"include_usage": 1}, "' + b"k" * 9000 + b'": 1}')
    assert caught.value.param == "stream_options.include_usage"
    assert _path(("logit_bias", "k" * 9000)) == "logit_bias." + "k" * 64


def test_a_duplicate_key_takes_its_last_value() -> None:
    assert parse(ChatRequest, b"{" + HI + b', "n": 2, "n": 3}').n == 3


def test_unknown_fields_are_named() -> None:
    body = parse(ChatRequest, b"{" + HI + b', "zeta": 1, "al\\npha\xc3\xa9": 2}')
    assert unknown_fields(body) == "ignored unknown fields: al\\npha\\xe9, zeta"
    assert unknown_fields(parse(ChatRequest, b"{" + HI + b"}")) is None
    assert unknown_fields(parse(ChatRequest, b"{" + HI + b', "zeta": null}')) is None


def test_many_unknown_fields_do_not_make_a_long_header() -> None:
    extra = ",".join(f'"{"x" * 1000}{i}": 1' for i in range(100))
    warning = unknown_fields(parse(ChatRequest, b"{" + HI + b"," + extra.encode() + b"}"))
    assert warning is not None
    assert len(warning) < 700
    assert warning.endswith("and 92 more")
