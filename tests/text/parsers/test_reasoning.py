"""Thoughts in front of an answer, read apart from it, for every way to cut the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.text.parsers.delta import Delta, Kind, Signature
from tailrace.text.parsers.formats import FORMATS
from tailrace.text.parsers.reasoning import REASONING, Plain, Reasoning, reasoning_format

THINK = REASONING["think"]


def read(pieces: list[str], *, inside: bool = False, tools: bool = False) -> tuple[str, str, str]:
    """(thoughts, text, calls)"""
    inner = FORMATS["hermes"].make([Signature("f")]) if tools else Plain()
    parser = Reasoning(THINK, inner, inside=inside)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    texts = {kind: "".join(d.name + d.text for d in deltas if d.kind is kind) for kind in Kind}
    return texts[Kind.REASONING], texts[Kind.TEXT], texts[Kind.CALL]


@pytest.mark.parametrize(
    ("text", "inside", "thoughts", "answer"),
    [
        ("<think>\nso it\nis\n</think>\n\nHello ", False, "so it\nis", "Hello "),
        ("so\n</think>\n\nHello", True, "so", "Hello"),
        ("\n\n</think>\n\nHello", True, "", "Hello"),
        ("<think></think>Hello", False, "", "Hello"),
        (" \n<think>so", False, "so", ""),
        ("so </thin", True, "so </thin", ""),
        ("  Hello <think>no</think>", False, "", "  Hello <think>no</think>"),
        ("<thi", False, "", "<thi"),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("", False, "", ""),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, inside: bool, thoughts: str, answer: str) -> None:
    assert read([text], inside=inside) == (thoughts, answer, "")
    assert read(list(text), inside=inside) == (thoughts, answer, "")


SNIPPETS = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "\n", " ", "a", "👩🏽‍🚀", "<tool_call>", '{"name": "f"}']
)


@given(
    text=st.lists(st.one_of(SNIPPETS, st.text(max_size=3)), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 80), max_size=12),
    inside=st.booleans(),
    tools=st.booleans(),
)
def test_no_way_to_cut_the_text_changes_it(text: str, cuts: list[int], inside: bool, tools: bool) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert read(pieces, inside=inside, tools=tools) == read([text], inside=inside, tools=tools)


def test_a_call_behind_the_thoughts_not_within() -> None:
    text = '<think>maybe <tool_call>{"name": "f"}</tool_call></think><tool_call>{"name": "f"}</tool_call>'
    assert read([text], tools=True) == ('maybe <tool_call>{"name": "f"}</tool_call>', "", "f{}")


def test_thoughts_come_as_they_are_thought() -> None:
    parser = Reasoning(THINK, Plain(), inside=True)
    assert parser.push("so it ") == [Delta(Kind.REASONING, "so it")]
    assert parser.push("is </thi") == [Delta(Kind.REASONING, " is")]
    assert parser.thinking
    assert parser.push("nk>\n") == []
    assert not parser.thinking
    assert parser.push("\nYes") == [Delta(Kind.TEXT, "Yes")]


def test_which_marks_follows_from_the_template() -> None:
    assert reasoning_format("auto", "... </think> ...") is THINK
    assert reasoning_format("auto", "[THINK][/THINK]") is REASONING["mistral"]
    assert reasoning_format("auto", "plain") is None
    assert reasoning_format("none", "</think>") is None
    assert reasoning_format("think", "") is THINK
    with pytest.raises(ConfigError, match="reasoning_parser is x"):
        reasoning_format("x", "")
