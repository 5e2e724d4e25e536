from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.clock import ManualClock
from tailrace.errors import ConfigError, InvalidRequest, ModelFileError, TemplateRefused
from tailrace.text.template import MAX_SOURCE, ChatTemplate
from tailrace.text.tokenizer import Tokenizer
from tests.text.vocabularies import tiny_metadata

HI = [{"role": "user", "content": "Hi"}]
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)


class TickingClock(ManualClock):
    """Every look at it is a second later."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, clock=ManualClock(), **options)


def render(source: str, messages: Any = HI, **options: Any) -> str:
    return template(source).render(messages, **options)


def refusal(source: str, messages: Any = HI, **options: Any) -> str:
    with pytest.raises(TemplateRefused) as caught:
        render(source, messages, **options)
    assert caught.value.status == 400
    assert ".py" not in caught.value.message and "Traceback" not in caught.value.message
    return caught.value.message


def test_the_models_own_template(smollm2: Tokenizer, smollm2_metadata: dict[str, Any]) -> None:
    own = ChatTemplate.from_metadata(smollm2_metadata, clock=ManualClock())
    assert own is not None
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert own.render(HI) == system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert own.render(HI, add_generation_prompt=False) == system + "<|im_start|>user\nHi<|im_end|>\n"
    ids = smollm2.encode_rendered(own.render(HI)).tolist()
    assert ids.count(1) == 3  # one for each turn: no start token was added to the template's own


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate.from_metadata(tiny_metadata(), clock=ManualClock()) is None


def test_a_file_replaces_it_and_knows_the_models_tokens(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}")
    own = ChatTemplate.from_file(path, tiny_metadata(), clock=ManualClock())
    assert own.render(HI) == "<|im_start|>|<|im_end|>|Hi"
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate.from_file(tmp_path / "missing", tiny_metadata(), clock=ManualClock())


@pytest.mark.parametrize("value", [False, "1", 1.0, -1, 10**6, [1]])
@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
def test_a_model_that_names_no_token_as_its_start_or_end_is_refused(key: str, value: object) -> None:
    metadata = {**tiny_metadata(**{key: value}), "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}"}
    with pytest.raises(ModelFileError) as caught:
        ChatTemplate.from_metadata(metadata, clock=ManualClock())
    assert f"tokenizer.ggml.{key} is {value!r}; the vocabulary has" in caught.value.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("one\n{% for m in messages %}", "chat template, line 2: Unexpected end of template"),
        ("{{ messages|no_such }}", "line 1: No filter named 'no_such'"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "cannot be compiled"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "cannot be compiled"),
        ("x" * (MAX_SOURCE + 1), f"at most {MAX_SOURCE} are accepted"),
    ],
)
def test_a_source_that_is_no_template_is_told_at_start(source: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        template(source)
    assert message in caught.value.message
    with pytest.raises(ModelFileError):
        ChatTemplate.from_metadata({"tokenizer.chat_template": source}, clock=ManualClock())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}", "x\n"),  # trim and lstrip blocks
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% generation %}x{{ 1 }}{% endgeneration %}y", "x1y"),
        ("{{ strftime_now('%Y') }}", "2023"),
        ("{{ messages | map(attribute='content') | join(', ') }}", "Hi"),
        ("{{ [1, 2] | sum }}{{ [{'a': 3}] | sum(attribute='a') }}", "33"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ '%s-%d' % ('a', 3) }} {{ '{}-{x}'.format('a', x=3) }} {{ 'aXa'.replace('X', 'Y') }}", "a-3 a-3 aYa"),
        ("{{ 'a' ~ 1 ~ missing ~ 'b' }}{{ messages[-1].content[1:] }}", "a1bi"),
        (
            "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}",
            "role=user,content=Hi",
        ),
        ("{% macro turn(m) %}<{{ m.content }}>{% endmacro %}{{ turn(messages[0]) }}", "<Hi>"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("{% for i in [[1], 2] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_tools_and_further_variables_reach_the_template() -> None:
    assert (
        render("{{ tools[0].name }} {{ enable_thinking }}", tools=[{"name": "f"}], enable_thinking=False) == "f False"
    )


def test_the_templates_own_reason_is_told() -> None:
    two_users = [*HI, *HI]
    assert refusal(STRICT, two_users) == "the chat template refused the messages: Roles must alternate"


@pytest.mark.parametrize(
    ("source", "messages", "part"),
    [
        ("{{ 'x' + messages[0].content }}", [{"role": "user", "content": 7}], "a type or form that it does not expect"),
        ("{{ 'x' + messages[0].content }}", [{"role": "user"}], "has no attribute 'content'"),
        ("{{ messages[0].a.b }}", HI, "has no attribute 'a'"),
        ("{{ 1 / 0 }}", HI, "a type or form"),
        ("{{ raise_exception() }}", HI, "it gave no reason"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", HI, "nested too deeply"),
        ("{% if x is no_such_test %}{% endif %}", HI, "No test named 'no_such_test'"),
        ("{% include 'other' %}", HI, "a type or form"),
        ("{{ missing | tojson }}", HI, "'missing' is undefined"),
    ],
)
def test_every_failure_inside_a_template_is_a_refusal(source: str, messages: Any, part: str) -> None:
    assert part in refusal(source, messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''['__class__'].mro() }}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages | map(attribute='__class__') | map(attribute='__mro__') | list }}",
        "{{ 'x'.center(100) }}",
        "{{ 'x'.encode() }}",
        "{{ (1).to_bytes(10) }}",
    ],
)
def test_nothing_of_python_is_within_reach(source: str) -> None:
    assert "may not" in refusal(source) or "unsafe" in refusal(source)


NESTED_LOOPS = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}"
GROWING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** 100 ** 3 * 10 ** 4000 }}",
        "{{ (10 ** 1000) * (10 ** 1000) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        GROWING.replace("START", "'ab'").replace("STEP", "ns.x ~ ns.x"),
        GROWING.replace("START", "'ab'").replace("STEP", "ns.x + ns.x"),
        GROWING.replace("START", "[1]").replace("STEP", "ns.x + ns.x"),
        GROWING.replace("START", "[1]").replace("STEP", "[ns.x, ns.x]"),
        GROWING.replace("START", "[1]").replace("STEP", "dict(a=ns.x, b=ns.x)"),
        GROWING.replace("START", "{}").replace("STEP", "{'a': ns.x.items(), 'b': ns.x.items()}"),
        GROWING.replace("START", "1").replace("STEP", "namespace(a=ns.x, b=ns.x)"),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | upper }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
        "{{ ('{0}' * 1000).format('a' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).join(['x'] * 10000) }}",
        "{{ (['x'] * 10000) | join('a' * 1000000) }}",
        "{{ range(10000) | join('a' * 1000000) }}",
        "{{ 'a' | indent(10 ** 9) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(10000) %}{{ x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% set y %}{% for i in range(10000) %}{{ x }}{% endfor %}{% endset %}",
        "{% set x %}{% for i in range(10000) %}" + "a" * 10000 + "{% endfor %}{% endset %}",
        "{% macro f() %}" + "a" * 10000 + "{% endmacro %}{% for i in range(10000) %}{% set x = f() %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(1000) %}{% set ns.l = ns.l + [s[i:]] %}{% endfor %}",
    ],
)
def test_work_and_memory_are_bounded(source: str) -> None:
    assert "too much work" in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        NESTED_LOOPS,
        NESTED_LOOPS.replace("range(10000) %}{% endfor", "range(10000) if false %}{% endfor"),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in range(10000) %}{% set x = range(10000) | map('string') | list %}{% endfor %}",
    ],
)
def test_loops_end_after_so_many_steps_however_fast_they_run(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.text.budget.MAX_STEPS", 20_000)
    assert "more than 20000 steps" in refusal(source)


def test_what_is_slow_without_many_steps_ends_by_the_clock() -> None:
    slow = ChatTemplate(
        "{% for i in range(100) %}{% if 'b' in messages[0].content %}{% endif %}{% endfor %}", clock=TickingClock()
    )
    with pytest.raises(TemplateRefused, match="longer than 2 seconds"):
        slow.render(HI)


def test_a_template_works_again_after_a_refusal() -> None:
    strict = template(STRICT, bos="<s>")
    with pytest.raises(TemplateRefused):
        strict.render([*HI, *HI])
    assert strict.render(HI) == "<s>[user]Hi"


def test_a_long_conversation_is_no_hard_work(smollm2_metadata: dict[str, Any]) -> None:
    messages = [{"role": role, "content": "word " * 100} for _ in range(1000) for role in ("user", "assistant")]
    own = ChatTemplate.from_metadata(smollm2_metadata, clock=ManualClock())
    assert own is not None
    assert own.render(messages).count("word") == 200_000


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]


def test_parts_are_joined_for_templates_of_strings_and_kept_for_those_of_parts() -> None:
    assert render("{{ messages[0].content }}", PARTS) == "one\ntwo"
    assert render("{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}", PARTS) == "<one><two>"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["text"], "messages[0]"),
        ([*HI, {"role": "user", "content": [{"type": "image_url"}]}], "messages[1].content[0]"),
        ([{"role": "user", "content": ["text"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "a\ud800"}], "messages"),
    ],
)
def test_messages_that_no_template_can_take_are_named(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ messages[0].content }}", messages)
    assert caught.value.param == param


def test_the_last_message_can_be_continued() -> None:
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    source = turns + "{% if add_generation_prompt %}[a]{% endif %}"
    messages = [*HI, {"role": "assistant", "content": "I am "}]
    assert render(source, messages, continue_final_message=True) == "[user]Hi<end>[assistant]I am "
    assert messages[1]["content"] == "I am "
    nested: list[Any] = []
    for _ in range(1000):
        nested = [nested]
    last = {"role": "assistant", "content": "I", "extra": nested}
    assert render(source, [last], continue_final_message=True) == "[assistant]I"
    with pytest.raises(TemplateRefused, match="does not show the end of the last message"):
        render("{{ messages[0].content }}", messages, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="no content to continue"):
        render(source, [{"role": "assistant"}], continue_final_message=True)
