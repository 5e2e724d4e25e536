"""Calls in the text of answers: what each format's parser finds, and that no way to cut the text changes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.text.parsers.delta import Delta, Kind, Parser, Signature
from tailrace.text.parsers.formats import AUTO, FORMATS, tool_format

TOOLS = [Signature("look", ("where", "days")), Signature("lamp_on"), Signature("look-up", ("q",))]
TC, END = "<tool_call>", "</tool_call>"

# name of the format, text, prose, calls
FOUND: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Plain words.\n", "Plain words.\n", []),
    ("hermes", f'{TC}\n{{"name": "lamp_on", "arguments": {{}}}}\n{END}', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on"}}{END}', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on", "arguments": null}}{END}', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on", "arguments": ""}}{END}', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"arguments": {{"a": [1, {{}}]}}, "name": "look"}}{END}', "", [("look", '{"a": [1, {}]}')]),
    ("hermes", f'{TC}{{"name": "look", "arguments": "{{\\"a\\": 1}}"}}{END}', "", [("look", '{"a": 1}')]),
    (
        "hermes",
        f'Sure.\n{TC}\n{{"name": "look", "arguments": {{"where": "Žďár }} {END} 👩🏽‍🚀 \\" {{"}}}}\n{END}\n'
        f'{TC}\n{{"name": "lamp_on", "arguments": {{}}}}\n{END}\n',
        "Sure.",
        [("look", f'{{"where": "Žďár }} {END} 👩🏽‍🚀 \\" {{"}}'), ("lamp_on", "{}")],
    ),
    ("hermes", f'a {TC}{{"name": "lamp_on"}}{END} b ', "a  b ", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on"}}{END}\n\nDone.', "Done.", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on"}}', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on"}}</tool_', "", [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"name": "lamp_on"}}\n{{"name": "look"}}{END}', "", [("lamp_on", "{}"), ("look", "{}")]),
    ("hermes", f'{TC}{{"name": "nobody", "arguments": {{}}}}{END}', ..., []),  # type: ignore[list-item]
    ("hermes", f"{TC} is how calls begin", ..., []),  # type: ignore[list-item]
    ("hermes", f'{TC}{TC}{{"name": "lamp_on"}}{END}', TC, [("lamp_on", "{}")]),
    ("hermes", f'{TC}{{"nam', ..., []),  # type: ignore[list-item]
    ("hermes", "1 < 2 <tool", ..., []),  # type: ignore[list-item]
    ("hermes", '{"name": "lamp_on", "arguments": {}}', ..., []),  # type: ignore[list-item]
    ("hermes", f'{TC}{{"name": "look", "arguments": {{"a": 1}} oops}}{END}', "oops}" + END, [("look", '{"a": 1}')]),
    ("llama3", '{"name": "look", "parameters": {"where": "x"}}', "", [("look", '{"where": "x"}')]),
    ("llama3", '<|python_tag|>{"name": "lamp_on", "parameters": {}}', "", [("lamp_on", "{}")]),
    (
        "llama3",
        '{"name": "look", "parameters": {"a": 1}}; {"name": "lamp_on", "parameters": {}}',
        "",
        [("look", '{"a": 1}'), ("lamp_on", "{}")],
    ),
    ("llama3", '{"type": "function", "function": {"name": "lamp_on"}}', "", [("lamp_on", "{}")]),
    ("llama3", '{"name": "Oslo", "parameters": 2}', ..., []),  # type: ignore[list-item]
    ("llama3", 'Well: {"name": "lamp_on", "parameters": {}}', ..., []),  # type: ignore[list-item]
    ("llama3", '{"name": "lamp_on"} and then', "and then", [("lamp_on", "{}")]),
    ("mistral", '[TOOL_CALLS] [{"name": "look", "arguments": {"a": "]"}}]', "", [("look", '{"a": "]"}')]),
    (
        "mistral",
        'Hm. [TOOL_CALLS][{"name": "look", "arguments": {}}, {"name": "lamp_on", "arguments": {}, "id": "123456789"}]',
        "Hm.",
        [("look", "{}"), ("lamp_on", "{}")],
    ),
    ("mistral", '[TOOL_CALLS]look{"a": 1}[TOOL_CALLS]lamp_on{}', "", [("look", '{"a": 1}'), ("lamp_on", "{}")]),
    ("mistral", '[TOOL_CALLS]look-up[CALL_ID]abcdefghi[ARGS]{"q": 1}', "", [("look-up", '{"q": 1}')]),
    ("mistral", "[TOOL_CALLS]looking{}", ..., []),  # type: ignore[list-item]
    ("mistral", "[TOOL_C [AVAILABLE", ..., []),  # type: ignore[list-item]
    ("json", '```json\n[{"name": "look", "arguments": {"a": 1}}]\n```', "", [("look", '{"a": 1}')]),
    ("json", '  {"name": "look", "arguments": {"a": 1}}', "", [("look", '{"a": 1}')]),
    ("json", '[{"name": "look"}, {"name": "lamp_on"}]\n', "", [("look", "{}"), ("lamp_on", "{}")]),
    ("json", "[1, 2]", ..., []),  # type: ignore[list-item]
    ("json", "```python\nprint()\n```", ..., []),  # type: ignore[list-item]
    ("pythonic", "[lamp_on()]", "", [("lamp_on", "{}")]),
    (
        "pythonic",
        "[look(where='Žďár (n. S.), \\'', days=-2), lamp_on()]",
        "",
        [("look", '{"where": "Žďár (n. S.), \'", "days": -2}'), ("lamp_on", "{}")],
    ),
    ("pythonic", "```tool_code\nlook('x', 3)\n```", "", [("look", '{"where": "x", "days": 3}')]),
    ("pythonic", 'look(where={"a": [true, None, 1.5]})', "", [("look", '{"where": {"a": [true, null, 1.5]}}')]),
    ("pythonic", 'look-up(q="a")', "", [("look-up", '{"q": "a"}')]),
    ("pythonic", "[look(where=open('x'))]", ..., []),  # type: ignore[list-item]
    ("pythonic", "[look(where=1, where=2)]", ..., []),  # type: ignore[list-item]
    ("pythonic", "look(1, 2, 3)", ..., []),  # type: ignore[list-item]
    ("pythonic", "look('\\ud800')", ..., []),  # type: ignore[list-item]
    ("pythonic", "looking at it", ..., []),  # type: ignore[list-item]
    ("pythonic", "[1, 2]", ..., []),  # type: ignore[list-item]
    ("pythonic", "lamp_on() is what I would do", "is what I would do", [("lamp_on", "{}")]),
]


def parser(name: str) -> Parser:
    return FORMATS[name].make(TOOLS)


def read(one: Parser, pieces: Sequence[str]) -> list[Delta]:
    return [delta for piece in pieces for delta in one.push(piece)] + one.finish()


def whole(deltas: Sequence[Delta]) -> tuple[str, list[tuple[str, str]]]:
    """Prose, and calls by number; each has one first delta, and they come in order."""
    names, arguments = list[str](), list[str]()
    for delta in deltas:
        if delta.kind is Kind.CALL:
            if delta.name:
                assert delta.call == len(names)
                names.append(delta.name)
                arguments.append("")
            assert delta.call == len(names) - 1
            arguments[-1] += delta.text
    prose = "".join(delta.text for delta in deltas if delta.kind is Kind.TEXT)
    return prose, list(zip(names, arguments, strict=True))


@pytest.mark.parametrize(("name", "text", "prose", "calls"), FOUND)
def test_what_is_found(name: str, text: str, prose: str, calls: list[tuple[str, str]]) -> None:
    expected = (text if prose is ... else prose, calls)
    one = parser(name)
    assert whole(read(one, [text])) == expected
    assert not one.unfinished
    assert whole(read(parser(name), list(text))) == expected


SNIPPETS = st.sampled_from(
    [
        TC, END, "<tool", "_call>", "[TOOL_CALLS]", "[TOOL", "[", "]", "{", "}", '{"name": "look", "arguments": ', "{}",
        '{"name": "lamp_on"}', '{"a": "x', '"}', '", ', "\n", " ", ";", ",", "look", "look(", "lamp_on()", "where='",
        ")", "'", "\\", '"', "```", "```json\n", "[ARGS]", "Žďár 👩🏽‍🚀", "null", ": ", '"parameters"',
        "<|python_tag|>", '{"function": ', '"name": "look"', '"arguments": "{\\"a\\": 1}"', "STOP",
    ]
)  # fmt: skip


@given(
    name=st.sampled_from(sorted(FORMATS)),
    text=st.lists(st.one_of(SNIPPETS, st.text(max_size=3)), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 300), max_size=20),
    stop=st.integers(0, 400),
)
def test_no_way_to_cut_the_text_changes_what_is_found(name: str, text: str, cuts: list[int], stop: int) -> None:
    text = text[:stop]  # an answer may end anywhere
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    once, many = parser(name), parser(name)
    assert whole(read(many, pieces)) == whole(read(once, [text]))
    assert many.unfinished == once.unfinished


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5),
    max_size=3,
)


@given(
    name=st.sampled_from(["hermes", "llama3", "mistral", "json"]),
    calls=st.lists(st.tuples(st.sampled_from([tool.name for tool in TOOLS]), ARGUMENTS), min_size=1, max_size=3),
    size=st.integers(1, 30),
    ascii_only=st.booleans(),
)
def test_what_a_format_writes_its_parser_reads(
    name: str, calls: list[tuple[str, dict[str, object]]], size: int, ascii_only: bool
) -> None:
    written = [(call, json.dumps(arguments, ensure_ascii=ascii_only)) for call, arguments in calls]
    text = FORMATS[name].written(written)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert whole(read(parser(name), pieces)) == ("", written)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), name=st.sampled_from(sorted(FORMATS)))
def test_an_answer_without_calls_is_shown_to_the_letter(text: str, name: str) -> None:
    assert whole(read(parser(name), list(text))) == (text, [])


def test_arguments_come_as_they_are_written() -> None:
    one = parser("hermes")
    assert one.push(f'{TC}\n{{"name": "look", "arg') == []
    assert one.push('uments": {"whe') == [Delta(Kind.CALL, '{"whe', 0, "look")]
    assert one.push('re": "O') == [Delta(Kind.CALL, 're": "O', 0)]
    assert one.unfinished
    assert one.push('slo"}}') == [Delta(Kind.CALL, 'slo"}', 0)]
    assert not one.unfinished
    assert one.push(f"\n{END} and") == [Delta(Kind.TEXT, "and")]


def test_text_is_held_back_only_while_it_may_become_a_call() -> None:
    one = parser("hermes")
    assert one.push("if a <t") == [Delta(Kind.TEXT, "if a")]
    assert one.push("ool") == []
    assert one.push("s>") == [Delta(Kind.TEXT, " <tools>")]


def test_an_answer_cut_within_a_call() -> None:
    one = parser("mistral")
    assert whole(read(one, ['[TOOL_CALLS][{"name": "look", "arguments": {"a": 1'])) == ("", [("look", '{"a": 1')])
    assert one.unfinished


def test_much_nesting_and_long_answers_are_only_text() -> None:
    for text in (f"{TC}" * 3000, TC + '{"a": "' + "x" * 70_000, "look(" + "[" * 500 + "]" * 500 + ")", " " * 5000):
        for name in FORMATS:
            assert whole(read(parser(name), [text])) == (text, [])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call>\\n{'name' ...", "hermes"),
        ("[AVAILABLE_TOOLS] ... [TOOL_CALLS]", "mistral"),
        ('{"name": function name, "parameters": dictionary}', "llama3"),
        ("```tool_code", "pythonic"),
        ("{{ tools | tojson }}", "json"),
    ],
)
def test_a_template_says_how_its_model_writes_calls(template: str, name: str) -> None:
    assert tool_format(AUTO, template, knows_tools=True).name == name
    assert tool_format(AUTO, template, knows_tools=False).name == "hermes"
    assert tool_format("json", template, knows_tools=True).name == "json"


def test_an_unknown_parser_is_a_setting_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match=r"nothing.*known are auto, hermes"):
        tool_format("nothing", "", knows_tools=False)
