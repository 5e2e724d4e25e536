"""Bodies of /v1/responses: the chat they mean, what fits of it, and what is refused by the caller's own names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.errors import ContextLengthExceeded, RequestError
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse, unknown_fields
from tailrace.protocol.names import Names
from tailrace.protocol.responses.page import Page, page
from tailrace.protocol.responses.request import History, ResponsesRequest
from tailrace.protocol.sampling import Limits
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.template import ChatTemplate
from tests.protocol.test_requests import LIMITS, TOKENIZER
from tests.serving import template
from tests.text import families

WIDE = replace(LIMITS, max_context=100_000)
PLAIN = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
TOOL: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"where": "Žďár"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "20"}

SOME = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


HI = user("hi")


def ask(chat: ChatTemplate | None = None, limits: Limits = WIDE, history: Any = (), **fields: Any) -> Ask:
    chat = chat or template(PLAIN)
    body = parse(ResponsesRequest, json.dumps({"input": "hi", **fields}).encode())
    body.check(limits)
    body.remember(History(history))
    return body.ask("resp_1", chat, TOKENIZER, limits, Dialect.of(chat, TOKENIZER))


def prompt(chat: ChatTemplate | None = None, **fields: Any) -> str:
    return TOKENIZER.decode(ask(chat, **fields).requests[0].prompt.tolist())


def parts(*each: Any) -> list[Any]:
    return [{"role": "user", "content": list(each)}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "nope"}, "model"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": "x" * 200_000}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": parts({"type": "input_text"})}, "input[0].content[0].text"),
        ({"input": parts({"type": "input_image", "image_url": "x"})}, "input[0].content[0].type"),
        ({"input": parts({"type": "input_file"})}, "input[0].content[0].type"),
        ({"input": [HI, {"type": "web_search_call"}]}, "input[1].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"id": "msg_1"}]}, "input[0].id"),
        ({"input": [HI, OUTPUT]}, "input[1].call_id"),
        ({"input": [HI, CALL]}, "input"),
        ({"input": [HI, CALL, CALL]}, "input[2].call_id"),
        ({"input": [HI, CALL, OUTPUT, OUTPUT]}, "input[3].call_id"),
        ({"input": [HI, {**CALL, "name": None}]}, "input[1].name"),
        ({"input": [HI, {**CALL, "name": ""}, OUTPUT]}, "input[1].name"),
        ({"input": [HI, {**CALL, "arguments": {}}]}, "input[1].arguments"),
        ({"input": [HI, CALL, {**OUTPUT, "output": None}]}, "input[2].output"),
        ({"input": [HI, CALL, {**OUTPUT, "output": [{"type": "input_image"}]}]}, "input[2].output[0].type"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["everything"]}, "include"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"store": "yes"}, "store"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),  # a model that does not think
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"tpye": 1}}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tools": [{**TOOL, "parameters": {"tpye": 1}, "strict": None}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [TOOL]}}, "tool_choice.mode"),
        ({"tools": [TOOL], "tool_choice": {**SOME, "tools": []}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {**SOME, "tools": [{"name": "nobody"}]}}, "tool_choice.tools[0].name"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"seed": -(2**64)}, "seed"),
    ],
)
def test_refusals_name_the_callers_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask(**fields)
    assert refused.value.param == param
    assert param.rpartition(".")[2].partition("[")[0] in refused.value.message


def test_what_has_no_effect_is_taken_without_a_word() -> None:
    fields = {
        "user": "u", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "background": False,
        "include": ["reasoning.encrypted_content"], "max_tool_calls": 3, "text": {"verbosity": "medium"},
        "reasoning": {"effort": "none", "summary": "auto"}, "stream": True, "stream_options": {},
    }  # fmt: skip
    body = parse(ResponsesRequest, json.dumps({"input": "hi", **fields}).encode())
    body.check(WIDE)
    assert unknown_fields(body) is None


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "[user|hi]"),
        ({"instructions": "Be."}, "[system|Be.][user|hi]"),
        ({"instructions": "Be.", "input": [{"role": "developer", "content": "Do."}, HI]}, "[system|Be.\nDo.][user|hi]"),
        ({"input": [HI, {"role": "system", "content": "Now."}]}, "[user|hi][system|Now.]"),
        ({"input": parts({"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"})}, "[user|a\nb]"),
        ({"input": [HI, {"role": "assistant", "content": "Well"}, HI]}, "[user|hi][assistant|Well][user|hi]"),
        (
            {"input": [HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}, HI]},
            "[user|hi][assistant|No][user|hi]",
        ),
    ],
)
def test_items(fields: dict[str, Any], shown: str) -> None:
    assert prompt(**fields) == shown


def test_calls_of_one_turn_stay_together() -> None:
    items = [
        HI,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sure."}]},
        CALL,
        {**CALL, "call_id": "call_2", "arguments": "{}"},
        {**OUTPUT, "output": [{"type": "input_text", "text": "20"}]},
        {**OUTPUT, "call_id": "call_2"},
        user("And?"),
    ]
    shown = prompt(template(families.CHATML_TOOLS), input=items, tools=[TOOL])
    assert shown.count("<|im_start|>assistant") == 2
    assert (
        shown.index("Sure.") < shown.index('{"where": "Žďár"}') < shown.index("<tool_response>") < shown.index("And?")
    )


def test_thoughts_go_back_to_the_template() -> None:
    chat = template("{% for m in messages %}[{{ m.reasoning_content or m.content }}]{% endfor %}{# </think> #}")
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    for item, shown in ((thoughts, "[hm]"), (summary, "[hm]"), (hidden, "[ok]")):
        items = [HI, item, {"role": "assistant", "content": "ok"}, HI]
        assert prompt(chat, input=items) == f"[hi]{shown}[hi]"


def test_what_came_before_stands_in_front() -> None:
    first = ask(input="one")
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1"}]}
    history = ((json.dumps(first.about["input"]).encode(), json.dumps({"output": [answer]}).encode()),)
    asked = {"input": "two", "previous_response_id": "resp_0", "history": history}
    assert prompt(**asked) == "[user|one][assistant|1][user|two]"
    with pytest.raises(RequestError) as wrong:
        ask(template("{{ raise_exception('no') }}"), **asked)
    assert wrong.value.param == "input"


SMALL = replace(LIMITS, max_context=64)


def test_the_oldest_turns_go_where_they_may() -> None:
    turns = [item for i in range(9) for item in (user(f"question {i}"), {"role": "assistant", "content": f"say {i}"})]
    long = [{"role": "system", "content": "Be."}, *turns, user("last")]
    with pytest.raises(ContextLengthExceeded) as refused:
        ask(limits=SMALL, input=long)
    assert refused.value.param == "input"
    shown = prompt(limits=SMALL, input=long, truncation="auto")
    assert shown == "[system|Be.][user|question 8][assistant|say 8][user|last]"
    with pytest.raises(ContextLengthExceeded):
        ask(limits=SMALL, input=[HI, user("x" * 200)], truncation="auto")
    assert prompt(limits=SMALL, truncation="auto") == "[user|hi]"


def test_a_result_goes_with_its_call() -> None:
    items = [HI, CALL, user("x" * 60), OUTPUT, user("last")]
    assert prompt(limits=SMALL, input=items, truncation="auto") == "[user|last]"


def test_the_fields_that_say_how() -> None:
    made = ask(
        temperature=0.5, top_p=0.9, max_output_tokens=7, seed=3, include=["message.output_text.logprobs"],
        top_logprobs=2, reasoning={"effort": "none"}, cache_salt="s", service_tier="flex",
    )  # fmt: skip
    request, shown = made.requests[0], made.about["response"]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.5, 0.9, 3)
    assert (request.stop.max_tokens, request.sampling.logprobs, request.salt) == (7, 2, b"s")
    assert (shown["temperature"], shown["top_logprobs"], shown["max_output_tokens"]) == (0.5, 2, 7)
    assert (shown["reasoning"]["effort"], shown["service_tier"], shown["store"]) == ("none", "flex", True)


def test_calls_are_strict_unless_told_otherwise() -> None:
    assert ask(tools=[TOOL]).requests[0].grammar is None
    for strict in (None, True):
        made = ask(tools=[{**TOOL, "strict": strict}])
        assert made.requests[0].grammar is not None
        assert made.about["response"]["tools"][0]["strict"] is True


def test_some_of_the_tools() -> None:
    made = ask(tools=[TOOL, {**TOOL, "name": "lamp"}], tool_choice=SOME)
    grammar = made.requests[0].grammar
    assert grammar is not None
    assert "lamp" not in grammar.source
    assert made.about["response"]["tool_choice"] == SOME


def test_ids_are_the_callers_or_follow_from_the_response() -> None:
    first, second = (ask(input=[{**HI, "id": "msg_mine"}, HI]).about["input"] for _ in range(2))
    assert first == second
    assert first[0]["id"] == "msg_mine"
    assert first[1]["id"].startswith("msg_")


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({}, ["c", "b", "a"], False),
        ({"order": "asc"}, ["a", "b", "c"], False),
        ({"limit": "2"}, ["c", "b"], True),
        ({"order": "asc", "after": "a"}, ["b", "c"], False),
        ({"after": "a"}, [], False),
    ],
)
def test_pages(query: dict[str, str], ids: list[str], more: bool) -> None:
    found = page([{"id": name} for name in "abc"], Page.of(query))
    assert ([item["id"] for item in found["data"]], found["has_more"]) == (ids, more)
    assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else ("", ""))


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order")],
)
def test_pages_that_are_none(query: dict[str, str], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        Page.of(query)
    assert refused.value.param == param


def test_names_of_fields() -> None:
    names = Names({"messages": "input", "messages[1]": "input[0]", "a.b": "c"})
    error = RequestError(
        "messages[1].content is missing; a.b.d too, unlike messages[2] or amessages", param="messages[1]"
    )
    names.rename(error)
    assert error.message == "input[0].content is missing; c.d too, unlike input[2] or amessages"
    assert (error.param, str(error)) == ("input[0]", error.message)
