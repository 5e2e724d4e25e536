"""Tools in a chat request: what is refused by name, what the prompt shows, the grammar of answers that are calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.errors import InvalidRequest, RequestError, Unsupported
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse
from tailrace.protocol.chat import ChatRequest
from tailrace.text.parsers.delta import Kind
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.parsers.formats import FORMATS
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer
from tests.engine.support import compiled, tokenizer
from tests.protocol.test_requests import HI, LIMITS, TOKENIZER
from tests.serving import STRICT, template
from tests.text import families
from tests.tiny import CHATML

PARAMETERS = {
    "type": "object",
    "properties": {"where": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["where"],
}
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Looks", "parameters": PARAMETERS},
}
LAMP: dict[str, Any] = {"type": "function", "function": {"name": "lamp_on"}}
NAMED = {"type": "function", "function": {"name": "lamp_on"}}
WIDE = replace(LIMITS, max_context=100_000)
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"where": "Žďár"}'}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "20"}
ROUND = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]


def dialect(chat: ChatTemplate, name: str = "auto") -> Dialect:
    return Dialect.of(chat, TOKENIZER, tool_parser=name)


def ask(chat: ChatTemplate | None = None, parser: str = "auto", messages: Any = HI, **fields: Any) -> Ask:
    chat = chat or template(CHATML)
    body = parse(ChatRequest, json.dumps({"messages": messages, **fields}).encode())
    return body.ask("id", chat, TOKENIZER, WIDE, dialect(chat, parser))


def prompt(chat: ChatTemplate, **fields: Any) -> str:
    return TOKENIZER.decode(ask(chat, **fields).requests[0].prompt.tolist())


def allowed(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def with_function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": [LOOK, LAMP, LOOK]}, "tools[2].function.name"),
        ({"tools": with_function(name="a b")}, "tools[0].function.name"),
        ({"tools": with_function(name="")}, "tools[0].function.name"),
        ({"tools": with_function(name="x" * 65)}, "tools[0].function.name"),
        ({"tools": with_function(name=7)}, "tools[0].function.name"),
        ({"tools": with_function(parameters=[])}, "tools[0].function.parameters"),
        ({"tools": with_function(parameters={"type": "string"})}, "tools[0].function.parameters"),
        ({"tools": [LAMP, *with_function(parameters={"tpye": 1}, strict=True)]}, "tools[1].function.parameters"),
        ({"tools": with_function(parameters={"tpye": 1}), "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [LAMP] * 129}, "tools"),
        ({"tools": [LOOK], "tool_choice": allowed("sometimes", LOOK)}, "tool_choice.allowed_tools.mode"),
        ({"tools": [LOOK], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [LOOK], "tool_choice": allowed("auto", LAMP)}, "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tools": [LOOK], "tool_choice": allowed("auto", {})}, "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
        ({"tools": [LOOK], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [LOOK], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [LOOK], "guided_regex": "a+"}, "guided_regex"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0].function"),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [*HI, {"role": "assistant", "content": None}]}, "messages[1].content"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert isinstance(caught.value, InvalidRequest | Unsupported)
    assert caught.value.param == param
    assert caught.value.message


def test_a_template_that_knows_tools_shows_them_and_takes_calls_back() -> None:
    chat = template(families.CHATML_TOOLS)
    assert dialect(chat).knows_tools
    text = prompt(chat, tools=[LOOK, LAMP], messages=ROUND)
    shown = json.loads(text.split("<tools>\n")[1].split("\n")[0])
    assert shown["function"]["parameters"] == PARAMETERS
    assert '"name": "lamp_on"' in text
    assert '<tool_call>\n{"name": "look", "arguments": {"where": "Žďár"}}\n</tool_call>' in text
    assert "<tool_response>\n20\n</tool_response>" in text


def test_a_template_that_adds_arguments_to_text_gets_text() -> None:
    chat = template(families.REASONING_CUT_OFF)
    assert not dialect(chat).objects
    assert '{"where": "Žďár"}' in prompt(chat, messages=ROUND, tools=[LOOK]).replace("\\", "")


def test_a_template_that_knows_no_tools_is_told_of_them_in_the_system_text() -> None:
    chat = template(CHATML)
    assert not dialect(chat).knows_tools
    system = {"role": "system", "content": "Be brief."}
    text = prompt(chat, tools=[LOOK], messages=[system, *ROUND])
    head, rest = text.split("<|im_end|>", 1)
    assert head.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.dumps(LOOK["function"]) in head
    assert '<tool_call>\n{"name": "function_name"' in head
    assert '<tool_call>\n{"name": "look", "arguments": {"where": "Žďár"}}\n</tool_call>' in rest
    assert "<|im_start|>user\n<tool_response>\n20\n</tool_response><|im_end|>" in rest


def test_turns_still_alternate_and_a_template_without_system_text_is_told_too() -> None:
    alternating = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
        "{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )
    chat = template(alternating)
    assert not dialect(chat).takes_system
    both = {"role": "assistant", "content": "Hm.", "tool_calls": [CALL, CALL]}
    result = {"role": "tool", "content": [{"type": "text", "text": "21"}]}
    messages = [*HI, both, RESULT, result, {"role": "user", "content": "So?"}]
    lines = prompt(chat, tools=[LOOK], messages=messages)
    assert lines.startswith("[user] You can call functions.")
    assert lines.count("[user]") == 2
    assert lines.count("[assistant] Hm.\n<tool_call>") == 1
    assert lines.endswith("<tool_response>\n20\n</tool_response>\n<tool_response>\n21\n</tool_response>\nSo?\n")


def test_no_choice_means_no_tools() -> None:
    chat = template(families.CHATML_TOOLS)
    made = ask(chat, tools=[LOOK], tool_choice="none")
    assert made.reader is None
    assert made.requests[0].prompt.tolist() == ask(chat).requests[0].prompt.tolist()
    assert ask(tools=[], tool_choice="none").reader is None


def test_an_answer_that_is_free_has_no_grammar() -> None:
    assert ask(tools=[LOOK]).requests[0].grammar is None
    assert ask(tools=[LOOK], tool_choice="auto", parallel_tool_calls=True).requests[0].grammar is None
    assert ask(tools=[LOOK], parallel_tool_calls=False).requests[0].grammar is not None


def accepts(made: Ask, text: str) -> bool:
    """Whether the request's grammar takes the whole text."""
    grammar = made.requests[0].grammar
    assert grammar is not None
    matcher = compiled(grammar).matcher()
    ids = tokenizer().encode(text, add_special=False, parse_special=True).tolist()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def look(arguments: str) -> str:
    return FORMATS["hermes"].written([("look", arguments)])


LAMP_CALL = FORMATS["hermes"].written([("lamp_on", "{}")])


def test_an_answer_that_must_be_calls() -> None:
    made = ask(tools=[LOOK, LAMP], tool_choice="required")
    assert accepts(made, LAMP_CALL)
    assert accepts(made, look('{"where": "Oslo", "days": 3}') + "\n" + LAMP_CALL)
    for wrong in ("", "Sure.", "Sure.\n" + LAMP_CALL, look("{}"), look('{"where": 3}'), LAMP_CALL.replace("lamp", "x")):
        assert not accepts(made, wrong), wrong
    assert not accepts(
        ask(tools=[LOOK, LAMP], tool_choice="required", parallel_tool_calls=False), f"{LAMP_CALL}\n{LAMP_CALL}"
    )
    named = ask(tools=[LOOK, LAMP], tool_choice=NAMED)
    assert accepts(named, LAMP_CALL)
    assert not accepts(named, look('{"where": "Oslo"}'))


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_every_format_reads_what_its_grammar_writes(parser: str) -> None:
    made = ask(parser=parser, tools=[LOOK, LAMP], tool_choice="required")
    written = FORMATS[parser].written([("look", '{"where": "x"}'), ("lamp_on", "{}")])
    assert accepts(made, written)
    assert made.reader is not None
    reader = made.reader()
    deltas = reader.push(written) + reader.finish()
    assert {delta.kind for delta in deltas} == {Kind.CALL}
    assert [delta.name for delta in deltas if delta.name] == ["look", "lamp_on"]


@pytest.mark.parametrize("parser", ["hermes", "mistral", "llama3", "json", "pythonic"])
def test_strict_tools_are_held_to_their_schema_beside_text(parser: str) -> None:
    strict = {**LOOK, "function": {**LOOK["function"], "strict": True}}
    made = ask(parser=parser, tools=[strict, LAMP])
    form = FORMATS[parser]
    assert accepts(made, "Just words, and a < b.")
    assert accepts(made, form.written([("look", '{"where": "x"}')]))
    assert accepts(made, form.written([("lamp_on", '{"any": ["thing"]}')]))  # is not strict
    assert not accepts(made, form.written([("look", '{"where": 3}')]))
    assert not accepts(made, form.written([("nobody", "{}")]))
    if parser in ("hermes", "mistral"):
        assert accepts(made, "First. " + form.written([("look", '{"where": "x"}')]))
        assert not accepts(made, "First. " + form.written([("look", '{"where": 3}')]))


def test_one_call_at_most_where_that_is_asked_for() -> None:
    made = ask(tools=[LOOK, LAMP], parallel_tool_calls=False)
    assert accepts(made, "Plain.")
    assert accepts(made, "So: " + LAMP_CALL)
    assert not accepts(made, f"{LAMP_CALL}\n{LAMP_CALL}")


def test_a_call_or_an_answer_of_a_schema() -> None:
    made = ask(tools=[LAMP], response_format={"type": "json_object"})
    assert accepts(made, '{"a": 1}')
    assert accepts(made, LAMP_CALL)
    assert not accepts(made, "words")


def test_marks_that_are_tokens_of_their_own_are_written_as_such() -> None:
    names = {"[TOOL_CALLS]": 1}
    assert tokenizer().special_tokens(["<|im_start|>", "no such"]).keys() == {"<|im_start|>"}
    body = parse(ChatRequest, json.dumps({"messages": HI, "tools": [LAMP], "tool_choice": "required"}).encode())
    special = Dialect(FORMATS["mistral"], names)
    (request,) = body.ask("id", template(CHATML), TOKENIZER, WIDE, special).requests
    assert request.shown_ids == (1,)
    assert request.grammar is not None
    matcher = compiled(request.grammar).matcher()
    rest = tokenizer().encode('[{"name": "lamp_on", "arguments": {}}]', add_special=False, parse_special=False)
    assert matcher.try_consume_tokens([1, *rest.tolist()]) == 1 + len(rest)
    assert matcher.is_accepting()


def test_the_mistral_way_has_ids_of_nine_characters() -> None:
    chat = template(families.INST_ALTERNATION)
    assert dialect(chat).tools is FORMATS["mistral"]
    assert ask(chat, tools=[LOOK]).call_ids == 9


def test_requests_with_tools_say_so() -> None:
    body = parse(ChatRequest, json.dumps({"messages": HI, "tools": [LAMP]}).encode())
    assert body.traits("chat").tools
    assert not parse(ChatRequest, json.dumps({"messages": HI}).encode()).traits("chat").tools
    assert parse(ChatRequest, json.dumps({"messages": ROUND}).encode()).traits("chat").tools


def test_a_strict_template_and_no_template_are_no_obstacle_to_finding_out() -> None:
    assert not dialect(template(STRICT)).knows_tools
    assert Dialect.of(None, TOKENIZER).tools.name == "hermes"
    assert isinstance(TOKENIZER, Tokenizer)


def test_only_the_allowed_tools_are_called() -> None:
    chat = template(families.CHATML_TOOLS)
    free = ask(chat, tools=[LOOK, LAMP], tool_choice=allowed("auto", LAMP))
    assert free.requests[0].grammar is None
    assert free.reader is not None
    reader = free.reader()
    said = '<tool_call>{"name": "look"}</tool_call><tool_call>{"name": "lamp_on"}</tool_call>'
    calls = [delta.name for delta in [*reader.push(said), *reader.finish()] if delta.kind is Kind.CALL]
    assert [name for name in calls if name] == ["lamp_on"]
    assert '"look"' in prompt(chat, tools=[LOOK, LAMP], tool_choice=allowed("auto", LAMP))  # shown all the same
    grammar = ask(chat, tools=[LOOK, LAMP], tool_choice=allowed("required", LAMP)).requests[0].grammar
    assert grammar is not None
    assert "lamp_on" in grammar.source
    assert "look" not in grammar.source
