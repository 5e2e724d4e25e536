"""Thoughts are ended after exactly so many tokens, whatever runs beside them, and a grammar holds behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.grammar.thinking import Phase, ThinkingRules
from tailrace.protocol.json_schema import schema_source
from tailrace.types import FinishReason, GenerateRequest, Grammar, GrammarKind, StopConditions, Thinking
from tests.engine.support import Oracle, Rig, alone, parts, request, seeded, tokenizer

BEGIN, END = "<think>", "</think>"
CLOSING = tokenizer().encode(f"\n{END}\n\n", add_special=False, parse_special=True).tolist()
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, schema_source(SCHEMA, "f"))


def thinker(
    id: str = "r", budget: int | None = 9, seed: int = 1, *, inside: bool = True, **fields: object
) -> GenerateRequest:
    """Answers of random tokens."""
    stop = StopConditions(max_tokens=80)
    thinking = Thinking(BEGIN, END, inside, budget)
    return request(id, sampling=seeded(seed), stop=stop, thinking=thinking, **fields)


@pytest.mark.parametrize("budget", [0, 1, 9, 40])
def test_the_end_is_forced_after_exactly_the_budget(budget: int) -> None:
    tokens = alone(thinker(budget=budget)).tokens()
    assert tokens[budget : budget + len(CLOSING)] == CLOSING
    free = alone(replace(thinker(), thinking=None)).tokens()
    assert tokens[:budget] == free[:budget]  # until then nothing is changed


def test_alone_in_a_batch_in_chunks_with_guesses_it_is_the_same() -> None:
    several = [thinker(str(i), budget=i % 7, seed=i, tokens=8 + i) for i in range(8)]
    expected = {one.id: alone(one).tokens(one.id) for one in several}
    for engine in (
        parts(slots=8, blocks=256, drafter=GrammarDrafter(None)),
        parts(slots=3, blocks=20, chunk=5, drafter=GrammarDrafter(Oracle(right=90))),
        parts(slots=8, blocks=256),
    ):
        rig = Rig(engine).run(*several)
        assert {one.id: rig.tokens(one.id) for one in several} == expected


def test_a_grammar_holds_behind_the_thoughts() -> None:
    seen = set()
    for drafter in (GrammarDrafter(None), GrammarDrafter(Oracle(right=100)), None):
        rig = Rig(parts(drafter=drafter)).run(thinker(grammar=GRAMMAR, inside=False, budget=6))
        choice = rig.choice()
        seen.add(tuple(choice.tokens))
        assert choice.text.startswith(BEGIN + "\n")
        thoughts, _, answer = choice.text.partition(END)
        assert answer in ('\n\n{"a": 1}', '\n\n{"a": 2}')
        assert thoughts.endswith("\n")
        assert choice.finish is FinishReason.STOP
        opening = tokenizer().encode(BEGIN + "\n", add_special=False, parse_special=True).tolist()
        assert choice.tokens[len(opening) + 6 :][: len(CLOSING)] == CLOSING
    assert len(seen) == 1


def place_behind(rules: ThinkingRules, text: str) -> Phase:
    place = rules.start
    for token in tokenizer().encode(text, add_special=False, parse_special=True).tolist():
        place = rules.step(place, token)
    return place.phase


@pytest.mark.parametrize(
    ("text", "inside", "phase"),
    [
        ("", True, Phase.INSIDE),
        ("so </thin", True, Phase.INSIDE),
        ("so </think", True, Phase.INSIDE),
        ("so </think>", True, Phase.OVER),
        ("", False, Phase.OPENING),
        ("\n <thi", False, Phase.OPENING),
        ("<think>so", False, Phase.INSIDE),
        ("<think>so</think> a", False, Phase.OVER),
        ("<thing>", False, Phase.OVER),
        ("No <think>", False, Phase.OVER),
    ],
)
def test_marks_are_found_in_any_tokens(text: str, inside: bool, phase: Phase) -> None:
    rules = ThinkingRules(Thinking(BEGIN, END, inside, 500), tokenizer(), 300, forced=False)
    assert place_behind(rules, text) is phase
