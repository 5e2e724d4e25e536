"""Answers that follow a grammar, through the engine without a model: valid, and the same bits however they come."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from tailrace.engine.grammar.drafter import TOGETHER, GrammarDrafter
from tailrace.errors import InvalidRequest
from tailrace.protocol.structured import grammar_of
from tailrace.types import FinishReason, GenerateRequest, Grammar, SamplingParams, StopConditions
from tests.engine.support import Oracle, Rig, request, tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name_of_person": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["x", "y"]},
    },
    "required": ["name_of_person", "age", "kind"],
    "additionalProperties": False,
}
FORCED = {"type": "object", "properties": {"fixed": {"const": "always the same"}}, "required": ["fixed"]} | {
    "additionalProperties": False
}


def asks(
    grammar: Grammar | None, id: str = "r", tokens: int = 8, most: int = 150, *, seed: int | None = 0, **fields: Any
) -> GenerateRequest:
    """`seed` None: greedy. `fields` of SamplingParams and StopConditions go there, the others into the request."""
    stop = {name: fields.pop(name) for name in list(fields) if name in StopConditions.__slots__}
    how = {name: fields.pop(name) for name in list(fields) if name in SamplingParams.__slots__}
    sampling = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, **how)
    return request(id, tokens, sampling=sampling, stop=StopConditions(most, **stop), grammar=grammar, **fields)


def schema(schema: object) -> Grammar:
    grammar = grammar_of({"guided_json": schema})
    assert grammar is not None
    return grammar


def regex(pattern: str) -> Grammar:
    grammar = grammar_of({"guided_regex": pattern})
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_an_answer_is_of_its_schema_and_ends_by_itself(seed: int | None) -> None:
    choice = Rig().run(asks(schema(PERSON), seed=seed)).choice()
    jsonschema.validate(json.loads(choice.text), PERSON)
    assert choice.finish is FinishReason.STOP
    assert choice.tokens[-1] in tokenizer().end_ids
    assert not set(choice.tokens[:-1]) & tokenizer().special_ids


def test_a_cut_answer_says_length_and_is_the_beginning_of_the_whole() -> None:
    whole = Rig().run(asks(schema(PERSON))).choice()
    for most in range(1, len(whole.tokens)):
        cut = Rig(drafter=GrammarDrafter(None)).run(asks(schema(PERSON), most=most)).choice()
        assert cut.finish is FinishReason.LENGTH
        assert cut.tokens == whole.tokens[:most]
        assert whole.text.startswith(cut.text.rstrip("\ufffd"))


def test_what_is_forced_takes_no_steps_of_its_own() -> None:
    plain = Rig().run(asks(schema(FORCED)))
    drafted = Rig(drafter=GrammarDrafter(None)).run(asks(schema(FORCED)))
    assert plain.choice().text == drafted.choice().text == '{"fixed": "always the same"}'
    assert plain.tokens() == drafted.tokens()
    assert plain.runner.steps == len(plain.tokens())  # type: ignore[attr-defined]
    assert drafted.runner.steps <= 3  # type: ignore[attr-defined]
    ended = drafted.events["r"][-1].facts
    assert ended is not None
    assert ended.drafted_tokens == ended.accepted_tokens > 10


def test_what_many_choices_force_does_not_make_a_step_long() -> None:
    rig = Rig(drafter=GrammarDrafter(None))
    rig.submit(*(asks(schema(FORCED), f"r{i}") for i in range(30)))
    sizes = []
    while rig.scheduler.has_work:
        plan = rig.scheduler.plan(0.0)
        assert plan is not None
        sizes.append(sum(draft.size for draft in plan.drafts))
        rig.step()
    assert 30 <= max(sizes) <= TOGETHER
    assert {rig.choice(f"r{i}").text for i in range(30)} == {'{"fixed": "always the same"}'}


def test_choices_differ_and_each_is_valid() -> None:
    rig = Rig(drafter=GrammarDrafter(None)).run(asks(schema(PERSON), n=4))
    texts = [rig.choice("r", index).text for index in range(4)]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) == 4


def test_a_stop_string_ends_it_inside_what_is_forced() -> None:
    grammar = schema(FORCED)
    choice = Rig(drafter=GrammarDrafter(None)).run(asks(grammar, strings=("the",))).choice()
    assert (choice.text, choice.finish) == ('{"fixed": "always ', FinishReason.STOP)


def test_every_token_has_its_logprob() -> None:
    plain = Rig().run(asks(schema(PERSON), logprobs=2)).choice()
    drafted = Rig(drafter=GrammarDrafter(None)).run(asks(schema(PERSON), logprobs=2)).choice()
    assert len(plain.logprobs) == len(plain.tokens)
    assert plain.logprobs == drafted.logprobs


def test_an_end_comes_no_sooner_than_asked_unless_nothing_else_may_come() -> None:
    letters = Rig().run(asks(regex("[ab]+"), min_tokens=30, most=60)).choice()
    assert len(letters.tokens) > 30
    short = Rig().run(asks(regex("ab"), min_tokens=30, most=60)).choice()
    assert (short.text, short.finish) == ("ab", FinishReason.STOP)


def test_end_tokens_that_do_not_count_do_not_come_while_others_may() -> None:
    letters = Rig().run(asks(regex("[ab]+"), ignore_eos=True, most=60)).choice()
    assert (len(letters.tokens), letters.finish) == (60, FinishReason.LENGTH)
    short = Rig().run(asks(regex("a{3,5}"), ignore_eos=True, most=60)).choice()
    assert (short.text, short.finish) == ("aaaaa", FinishReason.STOP)


def test_neighbours_without_a_grammar_do_not_change() -> None:
    free = asks(None, "free", most=40, ignore_eos=True)
    alone = Rig().run(free).tokens("free")
    beside = Rig(drafter=GrammarDrafter(None)).run(free, asks(schema(PERSON), "bound")).tokens("free")
    assert alone == beside


def test_a_grammar_beyond_its_limits_ends_its_own_request_only() -> None:
    rig = Rig(drafter=GrammarDrafter(None))
    (hurt, _) = rig.submit(asks(schema(PERSON), "hurt"), asks(schema(PERSON), "well"))
    rig.step()
    constraint = hurt.sequences[0].constraint
    assert constraint is not None
    constraint.matcher.consume_token(300)  # nothing allows it here: the matcher is in error for good
    while rig.scheduler.has_work:
        rig.step()
    (end,) = rig.choice("hurt").ends
    assert end.finish is FinishReason.ERROR
    assert isinstance(end.error, InvalidRequest)
    assert end.error.param == "guided_json"
    jsonschema.validate(json.loads(rig.choice("well").text), PERSON)


def test_a_fault_of_ours_ends_its_own_request_only() -> None:
    rig = Rig(drafter=GrammarDrafter(None))
    (hurt, _) = rig.submit(asks(schema(PERSON), "hurt"), asks(schema(PERSON), "well"))
    constraint = hurt.sequences[0].constraint
    assert constraint is not None
    constraint.matcher = None  # type: ignore[assignment]
    constraint.fault = AttributeError("gone")
    while rig.scheduler.has_work:
        rig.step()
    assert rig.choice("hurt").finish is FinishReason.ERROR
    jsonschema.validate(json.loads(rig.choice("well").text), PERSON)


leaves = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 1000},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[a-c]{1,4}(-x)?$"},
        {"enum": ["one", "two", 3, None]},
        {"const": "a constant of some length"},
        {"type": "string", "format": "date"},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.lists(st.sampled_from(["a", "name", "long name of it", "é", 'q"']), min_size=1, max_size=3, unique=True)

    @st.composite
    def make(draw: st.DrawFn) -> Any:
        found = draw(names)
        properties = {name: draw(inner) for name in found}
        required = draw(st.lists(st.sampled_from(found), unique=True))
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return make()


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner)


schemas = st.recursive(leaves, lambda inner: objects(inner) | arrays(inner), max_leaves=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    wanted=schemas,
    seed=st.integers(0, 1000) | st.none(),
    chunk=st.integers(1, 40),
    blocks=st.integers(8, 30),
    right=st.integers(0, 100),
    prefix_cache=st.booleans(),
)
def test_answers_are_valid_and_the_same_bits_in_any_company(
    wanted: Any, seed: int | None, chunk: int, blocks: int, right: int, prefix_cache: bool
) -> None:
    """Chunked, drafted by good and bad drafters, preempted for want of blocks, with and without a cache."""
    grammar = schema(wanted)
    one = asks(grammar, "one", 70, seed=seed, n=2)
    others = [asks(schema(PERSON), f"o{i}", 20 + 9 * i, most=90, seed=i) for i in range(4)]
    alone = [Rig(blocks=64).run(replace(each)) for each in (one, *others)]
    drafter = GrammarDrafter(Oracle(chunk, right=right))
    together = Rig(blocks=blocks, chunk=chunk, prefix_cache=prefix_cache, drafter=drafter).run(one, *others)
    for rig, each in zip(alone, (one, *others), strict=True):
        for index in range(each.n):
            assert together.tokens(each.id, index) == rig.tokens(each.id, index)
            assert together.choice(each.id, index).text == rig.choice(each.id, index).text
    for index in range(one.n):
        choice = together.choice("one", index)
        if choice.finish is FinishReason.STOP:
            jsonschema.validate(json.loads(choice.text), wanted)


@settings(max_examples=20, deadline=None)
@given(
    pattern=st.sampled_from(["[a-f]{2,9}", "(yes|no), (indeed|never)", r"\d{3}-\d{2,4}", "x*y"]),
    seed=st.integers(0, 99),
)
def test_an_answer_is_matched_by_its_pattern(pattern: str, seed: int) -> None:
    choice = Rig(drafter=GrammarDrafter(None)).run(asks(regex(pattern), seed=seed)).choice()
    if choice.finish is FinishReason.STOP:
        assert re.fullmatch(pattern, choice.text, re.ASCII)
