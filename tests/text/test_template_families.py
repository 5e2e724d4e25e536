"""Templates as real models have them render what their authors meant: the same as in a plain environment of jinja2
set up as `transformers` does, and word for word what is written here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tailrace.clock import ManualClock
from tailrace.errors import ConfigError, TemplateRefused
from tailrace.text.template import ChatTemplate
from tests.text import families
from tests.text.vocabularies import tiny_metadata

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " Hi <you> "}
ANSWER = {"role": "assistant", "content": "Hello"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks",
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"type": "string"},
                    "days": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "at": {"type": ["string", "null"]},
                    "box": {"type": "object", "properties": {"a": {}, "b": {}}},
                },
                "required": ["where"],
            },
        },
    }
]
FUNCTION = {"name": "look", "arguments": {"where": "Žďár", "days": 2}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call00001", "type": "function", "function": FUNCTION}],
}
CALL_OF_TEXT = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "function": {**FUNCTION, "arguments": '{"a": 1}'}}]}  # type: ignore[index]
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "20"}
THOUGHT = {"role": "assistant", "content": "<think>\nso\n</think>\n\nHello"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, ANSWER, USER],
    [USER, CALL, RESULT],
    [USER, CALL, RESULT, RESULT, ANSWER, USER],
    [USER, CALL_OF_TEXT, RESULT],
    [USER, THOUGHT, USER],
    [USER, {**ANSWER, "reasoning_content": "so", "thinking": "abc"}],
    [USER, USER],
    [ANSWER],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"add_generation_prompt": False},
    {"enable_thinking": False, "reasoning_effort": "odd"},
    {"documents": [{"id": 1, "title": "one", "text": "a long\ntext of many words"}], "date_string": "today"},
]
NAMES = [name for name in vars(families) if name.isupper()]


class Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    raise TemplateError(message)


def plain_environment(clock: ManualClock) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(clock.wall()).strftime(form)
    return environment


def template(name: str, clock: ManualClock | None = None) -> ChatTemplate:
    return ChatTemplate(getattr(families, name), clock=clock or ManualClock(), bos="<s>", eos="</s>")


def render(name: str, *messages: Mapping[str, Any], **options: Any) -> str:
    return template(name).render(messages, **options)


def requests() -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    return ((messages, options) for messages in CONVERSATIONS for options in OPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_it_renders_or_refuses_as_in_a_plain_environment(name: str) -> None:
    clock = ManualClock()
    ours, plain = template(name, clock), plain_environment(clock).from_string(getattr(families, name))
    rendered = 0
    for messages, options in requests():
        values = {"add_generation_prompt": True, "tools": None, "documents": None, **options}
        try:
            expected = plain.render(messages=messages, bos_token="<s>", eos_token="</s>", **values)
        except Exception:
            with pytest.raises(TemplateRefused):
                ours.render(messages, **options)
        else:
            rendered += 1
            assert ours.render(messages, **options) == expected
    assert rendered >= 10


def test_functions_and_calls_inside_marks() -> None:
    line = json.dumps(TOOLS[0])
    assert render("CHATML_TOOLS", USER, CALL, RESULT, RESULT, tools=TOOLS) == (
        f"<|im_start|>system\nYou are helpful.\n\nFunctions, one a line:\n<tools>\n{line}\n</tools><|im_end|>\n"
        "<|im_start|>user\n Hi <you> <|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "look", "arguments": {"where": "Žďár", "days": 2}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n20\n</tool_response>\n<tool_response>\n20\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert '"arguments": {"a": 1}}' in render("CHATML_TOOLS", USER, CALL_OF_TEXT)


def test_thoughts_of_earlier_turns_are_left_out_and_thinking_can_be_switched_off() -> None:
    start = "<|im_start|>user\n Hi <you> <|im_end|>\n<|im_start|>assistant\n"
    assert render("THINKING", USER, THOUGHT, USER) == f"{start}Hello<|im_end|>\n{start}"
    shown = f"{start}<think>\nso\n</think>\n\nHello<|im_end|>\n"
    assert render("THINKING", USER, THOUGHT, add_generation_prompt=False) == shown
    separate = {**ANSWER, "reasoning_content": "so"}
    assert render("THINKING", USER, separate, add_generation_prompt=False) == shown
    assert render("THINKING", USER, enable_thinking=False) == start + "<think>\n\n</think>\n\n"
    assert render("THINKING", USER, enable_thinking=True) == start


def test_an_answer_that_is_continued_ends_where_its_text_ends() -> None:
    start = "<|im_start|>user\n Hi <you> <|im_end|>\n<|im_start|>assistant\n"
    assert render("THINKING", USER, ANSWER, continue_final_message=True) == start + "<think>\n\n</think>\n\nHello"
    assert render("TURNS_OF_TWO", USER, ANSWER, continue_final_message=True).endswith("<start_of_turn>model\nHello")


def test_headers_with_a_date_and_calls_of_python() -> None:
    system = "<s><|start_header_id|>system<|end_header_id|>\n\n"
    assert render("HEADERS_WITH_IPYTHON", SYSTEM, USER) == (
        f"{system}Today: 14 Nov 2023\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <you><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    text = render("HEADERS_WITH_IPYTHON", USER, CALL, RESULT, tools=TOOLS, date_string="today")
    assert text.startswith(f"{system}Environment: ipython\nToday: today<|eot_id|>")
    assert '<|python_tag|>look.call(where="Žďár", days="2")<|eom_id|><|start_header_id|>ipython' in text
    two = {**CALL, "tool_calls": CALL["tool_calls"] * 2}  # type: ignore[operator]
    with pytest.raises(TemplateRefused, match="Only one call at a time"):
        render("HEADERS_WITH_IPYTHON", USER, two)


def test_turns_that_must_alternate() -> None:
    assert render("INST_ALTERNATION", SYSTEM, USER, ANSWER, USER) == (
        "<s>[INST]  Hi <you> [/INST] Hello</s>[INST] Be brief.\n\n Hi <you> [/INST]"
    )
    tools = render("INST_ALTERNATION", USER, tools=TOOLS)
    assert tools.startswith('<s>[AVAILABLE_TOOLS] [{"name": "look", "description": "Looks", "parameters": {"type":')
    assert tools.endswith('"required": ["where"]}}][/AVAILABLE_TOOLS][INST]  Hi <you> [/INST]')
    with pytest.raises(TemplateRefused, match="user and assistant must alternate"):
        render("INST_ALTERNATION", USER, USER)
    call = {**CALL["tool_calls"][0], "id": "short"}  # type: ignore[index]
    with pytest.raises(TemplateRefused, match="Call ids have nine characters"):
        render("INST_ALTERNATION", USER, {"role": "assistant", "tool_calls": [call]})
    assert render("TURNS_OF_TWO", SYSTEM, USER) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi <you><end_of_turn>\n<start_of_turn>model\n"
    )
    parts = {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}
    assert "user\nab<end_of_turn>" in render("TURNS_OF_TWO", parts)
    with pytest.raises(TemplateRefused, match="Turns must alternate"):
        render("TURNS_OF_TWO", ANSWER)


def test_reasoning_is_cut_off_earlier_answers() -> None:
    assert render("REASONING_CUT_OFF", USER, THOUGHT, USER, SYSTEM) == (
        "<s>Be brief.<|User|> Hi <you> <|Assistant|>\n\nHello</s><|User|> Hi <you> <|Assistant|><think>\n"
    )
    text = render("REASONING_CUT_OFF", USER, CALL_OF_TEXT, RESULT, RESULT)
    assert text.endswith('look\n```json\n{"a": 1}\n```<|calls_end|><|outputs|><|out|>20<|out|>20<|outputs_end|>')


def test_marks_for_training_are_no_text() -> None:
    assert render("ONE_LINE_ROLES", USER, ANSWER, add_generation_prompt=False) == (
        "<|user|>\n Hi <you> <|end|>\n<|assistant|>\nHello<|end|>\n</s>"
    )


def test_documents_and_functions_as_python() -> None:
    documents = [{"id": 7, "title": "one", "text": "a long\ntext of many words"}]
    assert render("DOCUMENTS", {**USER, "skip": True}, ANSWER, USER, tools=TOOLS, documents=documents) == (
        "<s><|SYSTEM|>def look(at: Union[string, null] = None, box: Dict[a, b] = None, days: int = None, "
        "tags: List[str] = None, where: str): # LOOKS"
        "<results>Document: 0Title: oneText: a long tex..</results><|BOT|>Hello<|USER|> Hi <you> <|BOT|>"
    )


def test_json_over_several_lines() -> None:
    text = render("PRETTY_JSON", {**USER, "content": " a\nb "}, CALL, tools=TOOLS)
    assert text == (
        "Tools: look\n" + json.dumps(TOOLS, indent=2) + '\nWhere1/2 USER: a | b2/2 ASSISTANT: - where="Žďár"- days=2'
    )
    assert render("PRETTY_JSON", USER) == "1/1 USER: Hi <you>\nASSISTANT:"


def test_reasoning_variables_with_a_default() -> None:
    assert render("EFFORT", USER) == "[effort medium]USER: Hi <you>\n"
    thoughts = {**ANSWER, "thinking": "abc"}
    assert render("EFFORT", thoughts, reasoning_effort="low") == "[effort low]ASSISTANT: Hello (3 thoughts)\n"
    with pytest.raises(TemplateRefused, match="reasoning_effort is odd"):
        render("EFFORT", USER, reasoning_effort="odd")


def test_a_model_may_have_another_template_for_tools() -> None:
    named = {
        "default": "plain {{ tools is none }}",
        "tool_use": "with {{ tools[0].function.name }}",
        "rag": "{% odd %}",
    }
    both = ChatTemplate(named, clock=ManualClock())
    assert (both.render([USER]), both.render([USER], tools=TOOLS)) == ("plain True", "with look")
    assert both.source == named["default"]
    with pytest.raises(ConfigError, match='has no template named "default", only tool_use'):
        ChatTemplate({"tool_use": "x"}, clock=ManualClock())
    with pytest.raises(ConfigError, match=r"\(tool_use\), line 1"):
        ChatTemplate({"default": "x", "tool_use": "{% odd %}"}, clock=ManualClock())


def test_model_files_name_theirs() -> None:
    metadata = tiny_metadata() | {
        "tokenizer.chat_template": "{{ bos_token }}plain",
        "tokenizer.chat_template.tool_use": "{{ eos_token }}tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    both = ChatTemplate.from_metadata(metadata, clock=ManualClock())
    assert both is not None
    assert (both.render([USER]), both.render([USER], tools=TOOLS)) == ("<|im_start|>plain", "<|im_end|>tools")
    written = ChatTemplate.from_metadata(metadata | {"tokenizer.bos_token": "<s>"}, clock=ManualClock())
    assert written is not None and written.render([USER]) == "<s>plain"
