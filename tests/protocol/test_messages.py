"""Anthropic's bodies: the chat they mean, the prompt they make, and what is refused by the caller's own names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.errors import InvalidRequest, RequestError, Unsupported
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse, unknown_fields
from tailrace.protocol.messages.errors import error_body
from tailrace.protocol.messages.request import CountRequest, MessagesRequest
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.template import ChatTemplate
from tests.protocol.test_requests import LIMITS, TOKENIZER
from tests.serving import template
from tests.text import families

WIDE = replace(LIMITS, max_context=100_000)
USER: list[Any] = [{"role": "user", "content": "hi"}]
LOOK: dict[str, Any] = {"name": "look", "input_schema": {"type": "object", "properties": {"where": {}}}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "Žďár"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "20"}
ROUND: list[Any] = [
    *USER,
    {"role": "assistant", "content": [{"type": "text", "text": "Sure."}, USE]},
    {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]},
]
PLAIN = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
THINK = {"type": "enabled", "budget_tokens": 1024}
WELL = {"role": "assistant", "content": "Well"}
ELSE = {**RESULT, "tool_use_id": "toolu_2"}
MODEL = {"model": "fake", "max_tokens": 2000}


def ask(chat: ChatTemplate | None = None, messages: Any = USER, **fields: Any) -> Ask:
    chat = chat or template(PLAIN)
    body = parse(MessagesRequest, json.dumps({**MODEL, "messages": messages, **fields}).encode())
    body.check(WIDE)
    return body.ask("id", chat, TOKENIZER, WIDE, Dialect.of(chat, TOKENIZER))


def prompt(chat: ChatTemplate | None = None, **fields: Any) -> str:
    return TOKENIZER.decode(ask(chat, **fields).requests[0].prompt.tolist())


def blocks(*each: Any) -> list[Any]:
    return [{"role": "user", "content": list(each)}]


def used(*each: Any) -> list[Any]:
    return [*USER, {"role": "assistant", "content": list(each)}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"model": "nope"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "system", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": []}, *USER]}, "messages[0].content"),
        ({"messages": blocks({"type": "text"})}, "messages[0].content[0].text"),
        ({"messages": blocks({"type": "text", "text": ""})}, "messages[0].content[0].text"),
        ({"messages": blocks({"type": "image", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": blocks({"type": "document", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": blocks({"type": "x" * 900})}, "messages[0].content[0].type"),
        ({"messages": blocks(RESULT)}, "messages[0].content[0].tool_use_id"),
        ({"messages": [*ROUND[:2], *USER]}, "messages[1].content[1]"),
        ({"messages": ROUND[:2]}, "messages[1].content[1]"),
        ({"messages": [*ROUND[:2], *blocks(ELSE)]}, "messages[2].content[0].tool_use_id"),
        ({"messages": [*ROUND[:2], *blocks({**RESULT, "tool_use_id": None})]}, "messages[2].content[0].tool_use_id"),
        (
            {"messages": [*ROUND[:2], *blocks({**RESULT, "content": [{"type": "image"}]})]},
            "messages[2].content[0].content[0].type",
        ),
        ({"messages": used(USE, USE)}, "messages[1].content[1].id"),
        ({"messages": used({**USE, "input": None})}, "messages[1].content[0].input"),
        ({"messages": [*used({**USE, "name": ""}), *blocks(RESULT)]}, "messages[1].content[0].name"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"metadata": {"user_id": "x" * 257}}, "metadata.user_id"),
        ({"metadata": []}, "metadata"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 2**64}, "seed"),
        ({"min_tokens": 3000}, "min_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"thinking": THINK}, "thinking.budget_tokens"),  # a model that does not think
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"thinking": THINK | {"display": "all"}}, "thinking.display"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [LOOK, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"tools": [{**LOOK, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**LOOK, "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [{**LOOK, "input_schema": {"tpye": 1}, "strict": True}]}, "tools[0].input_schema"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "nobody"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"tpye": 1}}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"context_management": {}}, "context_management"),
        ({"inference_geo": "us"}, "inference_geo"),
    ],
)  # fmt: skip
def test_refusals_name_the_callers_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask(**fields)
    assert refused.value.param == param
    assert param.rpartition(".")[2] in refused.value.message
    shown = error_body(refused.value)["error"]
    assert shown["type"] == ("not_found_error" if param == "model" else "invalid_request_error")


@pytest.mark.parametrize(
    "fields",
    [
        {"mcp_servers": [], "inference_geo": "global", "speed": "standard", "cache_control": {"type": "ephemeral"}},
        {"metadata": {"user_id": "u"}, "service_tier": "standard_only"},
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]},
    ],
)
def test_what_has_no_effect_is_taken_without_a_word(fields: dict[str, Any]) -> None:
    body = parse(MessagesRequest, json.dumps({**MODEL, "messages": USER, **fields}).encode())
    body.check(WIDE)
    assert unknown_fields(body) is None


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        (USER, "[user|hi]"),
        ([*USER, *USER], "[user|hi\nhi]"),
        (blocks({"type": "text", "text": "a"}, {"type": "text", "text": "b"}), "[user|a\nb]"),
        ([*USER, WELL], "[user|hi][assistant|Well"),
        ([*USER, {"role": "assistant", "content": ""}], "[user|hi]"),
        ([WELL, WELL, *USER], "[assistant|Well\nWell][user|hi]"),
    ],
)  # fmt: skip
def test_turns(messages: Any, shown: str) -> None:
    assert prompt(messages=messages) == shown


def test_neighbours_of_one_role_are_one_turn() -> None:
    second = {**USE, "id": "toolu_2"}
    messages = [*used(USE), *used(second)[1:], *blocks(RESULT), *blocks({**RESULT, "tool_use_id": "toolu_2"})]
    shown = prompt(template(families.CHATML_TOOLS), messages=messages)
    assert shown.count("<|im_start|>assistant") == 2
    assert shown.count("<tool_response>") == 2


@pytest.mark.parametrize("system", ["Be.", [{"type": "text", "text": "Be."}]])
def test_the_system_text(system: Any) -> None:
    assert prompt(system=system) == "[system|Be.][user|hi]"
    assert prompt(system="") == "[user|hi]"


def test_calls_and_results_come_back_as_the_template_shows_them() -> None:
    shown = prompt(template(families.CHATML_TOOLS), messages=ROUND, tools=[LOOK])
    assert '"name": "look", "arguments": {"where": "Žďár"}' in shown
    assert "<tool_response>\n20\n</tool_response>" in shown
    assert shown.index("Sure.") < shown.index("<tool_response>\n20") < shown.index("And?")


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": [{"type": "text", "text": "2"}, {"type": "text", "text": "0"}]}, "2\n0"),
        ({"content": None}, ""),
        ({"content": "no such place", "is_error": True}, "Error: no such place"),
    ],
)
def test_forms_of_a_result(result: dict[str, Any], shown: str) -> None:
    messages = [*ROUND[:2], *blocks({**RESULT, **result})]
    assert f"<tool_response>\n{shown}\n</tool_response>" in prompt(template(families.CHATML_TOOLS), messages=messages)


def test_thoughts_go_back_to_the_template() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    messages = [*used(thought, hidden, {"type": "text", "text": "ok"}), *USER]
    chat = template("{% for m in messages %}[{{ m.reasoning_content or m.content }}]{% endfor %}{# </think> #}")
    assert prompt(chat, messages=messages) == "[hi][hm][hi]"


def test_without_a_word_about_thinking_there_is_none() -> None:
    chat = template(families.THINKING)
    plain, thinks = ask(chat), ask(chat, thinking=THINK)
    assert plain.requests[0].thinking is None or plain.requests[0].thinking.budget == 0
    assert thinks.requests[0].thinking is not None
    assert thinks.requests[0].thinking.budget == 1024
    low = ask(chat, thinking={"type": "adaptive"}, output_config={"effort": "low"}).requests[0].thinking
    assert low is not None
    assert low.budget == 1024
    with pytest.raises(InvalidRequest) as begun:
        ask(chat, thinking=THINK, messages=[*USER, WELL])
    assert begun.value.param == "messages"


def test_the_fields_that_say_how() -> None:
    request = ask(
        temperature=0.5, top_k=7, top_p=0.9, stop_sequences=["a", "b"], seed=3, min_p=0.1, min_tokens=2, cache_salt="s"
    ).requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed) == (
        0.5,
        7,
        0.9,
        0.1,
        3,
    )
    assert (request.stop.strings, request.stop.max_tokens, request.stop.min_tokens) == (("a", "b"), 2000, 2)
    assert request.salt == b"s"
    assert ask(max_tokens=10**9).requests[0].stop.max_tokens < WIDE.max_context


@pytest.mark.parametrize(
    ("choice", "grammar"),
    [
        (None, False),
        ({"type": "auto"}, False),
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "look"}, True),
        ({"type": "none"}, False),
    ],
)
def test_tool_choice(choice: Any, grammar: bool) -> None:
    made = ask(tools=[LOOK], tool_choice=choice)
    assert (made.requests[0].grammar is not None) is grammar
    assert (made.reader is None) is (choice == {"type": "none"})


def test_one_call_at_most_where_calls_must_be() -> None:
    several, one = (
        ask(tools=[LOOK], tool_choice={"type": "any", "disable_parallel_tool_use": flag}).requests[0].grammar
        for flag in (False, True)
    )
    assert several is not None
    assert one is not None
    assert "{0,7}" in several.source
    assert "{0,7}" not in one.source


@pytest.mark.parametrize(
    "fields",
    [{}, {"system": "Be."}, {"messages": ROUND, "tools": [LOOK]}, {"tools": [LOOK], "tool_choice": {"type": "none"}}],
)
def test_counting_counts_what_a_message_has(fields: dict[str, Any]) -> None:
    chat = template(families.CHATML_TOOLS)
    body = parse(CountRequest, json.dumps({"messages": USER, **fields}).encode())
    ids = body.tokens(chat, TOKENIZER, WIDE, Dialect.of(chat, TOKENIZER))
    assert ids.tolist() == ask(chat, **fields).requests[0].prompt.tolist()


def test_what_cannot_be_counted() -> None:
    body = parse(CountRequest, json.dumps({"messages": blocks({"type": "image"})}).encode())
    with pytest.raises(Unsupported) as refused:
        body.tokens(template(PLAIN), TOKENIZER, WIDE, Dialect())
    assert refused.value.param == "messages[0].content[0].type"
