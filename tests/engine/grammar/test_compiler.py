"""Compiling: off the loop, within limits, once for the same source; refusals name the field."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.engine.grammar.compiler import AT_ONCE, LIMITS, MAX_KEPT, MAX_SOURCE, GrammarCompiler
from tailrace.engine.grammar.guard import Guard, Guards
from tailrace.engine.grammar.workshop import may_force_long_texts
from tailrace.errors import InternalError, InvalidRequest
from tailrace.protocol.structured import grammar_of
from tailrace.types import Grammar, GrammarKind
from tests.engine.support import VOCAB, NoGuard, tokenizer

ENDLESS = '{"grammars": [{"json_schema": {"type": "integer", "multipleOf": 999983}}]}'


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    """A real one, patient: what it takes, it takes on any machine."""
    guard = Guard(LIMITS, 120.0)
    yield guard
    guard.close()


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(tokenizer(), VOCAB, guard=NoGuard())
    yield made
    made.close()


def regex(pattern: str, field: str = "guided_regex") -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern, field)


async def refusal(compiler: GrammarCompiler, grammar: Grammar) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await compiler.get(grammar)
    assert caught.value.param == grammar.field
    return caught.value


async def test_the_same_source_is_compiled_once_whatever_asked_for_it(compiler: GrammarCompiler) -> None:
    first, second, other = await asyncio.gather(
        compiler.get(regex("a+")), compiler.get(regex("a+", "structured_outputs.regex")), compiler.get(regex("b+"))
    )
    assert first is second
    assert first is not other


@pytest.mark.parametrize(
    ("source", "long"),
    [
        ("(((ab){100}){100}){100}", True),
        ("a{4097}", True),
        ("x|(ab){ 5000,}", True),
        ("a" * 5000, True),
        (r"\d{3}-\d{4}", False),
        ("[a-z]{0,4000}", False),
        ("a{99999999999999999999}", True),
    ],
)
def test_patterns_that_may_force_long_texts_are_known(source: str, long: bool) -> None:
    assert may_force_long_texts(source) is long


@pytest.mark.parametrize(
    ("fields", "whole", "begun"),
    [
        ({"guided_regex": "x|(ab){5000}"}, "x", "a"),
        ({"guided_json": {"enum": ["y" * 5000, "b"]}}, '"b"', '"y'),
        ({"guided_grammar": 'start: "z" | /(ab){5000}/'}, "z", "a"),
    ],
)
async def test_they_are_followed_without_forcing(
    compiler: GrammarCompiler, fields: dict[str, object], whole: str, begun: str
) -> None:
    grammar = grammar_of(fields)
    assert grammar is not None
    for text, accepting in ((whole, True), (begun, False)):
        matcher = (await compiler.get(grammar)).matcher()
        assert matcher.consume_tokens(tokenizer().encode(text, add_special=False, parse_special=False).tolist())
        assert matcher.is_accepting() is accepting
        assert matcher.compute_ff_tokens() == []


async def test_few_are_kept_the_latest_used(compiler: GrammarCompiler) -> None:
    kept, lost = await compiler.get(regex("kept")), await compiler.get(regex("lost"))
    for number in range(MAX_KEPT - 1):
        await compiler.get(regex(f"a{{{number + 1}}}"))
        await compiler.get(regex("kept"))
    assert await compiler.get(regex("kept")) is kept
    assert await compiler.get(regex("lost")) is not lost


async def test_one_that_hit_a_limit_is_compiled_anew(compiler: GrammarCompiler) -> None:
    spoiled = await compiler.get(regex("a+"))
    spoiled.spoiled = True
    fresh = await compiler.get(regex("a+"))
    assert fresh is not spoiled
    assert await compiler.get(regex("a+")) is fresh


async def test_one_that_leaves_does_not_take_it_from_others(compiler: GrammarCompiler) -> None:
    leaving = asyncio.create_task(compiler.get(regex("a+")))
    staying = asyncio.create_task(compiler.get(regex("a+")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).matcher().is_error() is False


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (regex("(a"), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (Grammar(GrammarKind.LARK, "start: other", "guided_grammar"), "other"),
        (Grammar(GrammarKind.LARK, "start: (", "guided_grammar"), ""),
        (regex("a" * (MAX_SOURCE + 1)), f"at most {MAX_SOURCE}"),
    ],
)
async def test_a_bad_source_is_refused_by_its_field(compiler: GrammarCompiler, grammar: Grammar, says: str) -> None:
    error = await refusal(compiler, grammar)
    assert error.message.startswith(grammar.field)
    assert says in error.message
    assert "state>" not in error.message and "verbose" not in error.message
    other = Grammar(grammar.kind, grammar.source, "structured_outputs.x")
    assert (await refusal(compiler, other)).param == "structured_outputs.x"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"if": {}, "then": {}}, "then"),
        ({"type": "string", "format": "iri"}, "iri"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum"),
        ({"$ref": "https://example.com/x.json"}, "example.com"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "oneOf"),
        ({"type": "strin"}, "strin"),
    ],
)
async def test_a_schema_that_cannot_be_kept_is_refused_by_its_keyword(
    compiler: GrammarCompiler, schema: object, says: str
) -> None:
    grammar = grammar_of({"guided_json": schema})
    assert grammar is not None
    assert says in (await refusal(compiler, grammar)).message


def test_the_guard_takes_what_can_be_compiled_and_says_why_not(guard: Guard) -> None:
    assert guard.refusal("start: /a+/") is None
    assert "unclosed group" in str(guard.refusal("start: /(a/"))
    assert guard.refusal('start: "' + "x" * 200_000 + '"') is None


def test_what_would_compile_forever_is_refused_and_the_next_one_is_taken() -> None:
    hostile = Guard(LIMITS, 0.2)  # nothing that ends is waited for
    assert "0.2 s" in str(hostile.refusal(ENDLESS))
    hostile._seconds = 120.0
    assert hostile.refusal("start: /a+/") is None
    hostile.close()


class Slow(NoGuard):
    """Never done with what holds "slow", until it is told so."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def refusal(self, grammar: str) -> str | None:
        if "slow" in grammar:
            self.done.wait()
        return None


async def test_one_that_takes_its_time_holds_up_no_other() -> None:
    slow = Slow()
    compiler = GrammarCompiler(tokenizer(), VOCAB, guard=slow)
    waiting = [asyncio.create_task(compiler.get(regex(f"slow{i}"))) for i in range(AT_ONCE - 1)]
    await asyncio.sleep(0)
    try:
        assert (await compiler.get(regex("quick"))).matcher().is_error() is False
        assert not any(task.done() for task in waiting)
    finally:
        slow.done.set()
    await asyncio.gather(*waiting)
    compiler.close()


def test_guards_are_for_several_threads_and_use_few_processes() -> None:
    guards = Guards(3, LIMITS, 120.0)
    for _ in range(3):
        assert guards.refusal("start: /a+/") is None
    assert sum(guard._child is not None for guard in guards._all) == 1
    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(guards.refusal, [f"start: /a{{{i + 1}}}/" for i in range(12)])) == {None}
    guards.close()
    assert all(guard._child is None for guard in guards._all)


def test_closing_ends_what_is_being_tried_however_far_it_is() -> None:
    guard = Guard(LIMITS, 600.0)
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(guard.refusal, ENDLESS)
        guard.close()
        assert endless.exception() is None or isinstance(endless.exception(), InternalError)
    assert guard._child is None
    with pytest.raises(InternalError):
        guard.refusal("start: /a+/")


def test_the_process_ends_by_itself_when_nobody_stops_it() -> None:
    """As where the parent was killed: nobody is there to read or to kill."""
    guard = Guard(LIMITS, 1.0)
    assert guard.refusal("start: /a+/") is None
    child = guard._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.write(json.dumps(ENDLESS).encode() + b"\n")
    child.stdin.flush()
    assert child.wait(60) != 0
    guard.close()


def test_a_guard_whose_process_died_starts_another(guard: Guard) -> None:
    assert guard.refusal("start: /a+/") is None
    child = guard._child
    assert child is not None
    child.kill()
    child.wait()
    assert guard.refusal("start: /a+/") is None
    assert guard._child is not child
