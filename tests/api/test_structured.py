"""Answers that follow a schema, over HTTP: streamed equals plain, refusals have their status, and the parts add up."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from tailrace.api.state import AppState
from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import FakeBackend
from tailrace.clock import SystemClock
from tailrace.engine.grammar.compiler import LIMITS, GrammarCompiler, Trial
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.grammar.guard import Guards
from tailrace.protocol.structured import FIELDS
from tests.engine.support import VOCAB, NoGuard, parts, tokenizer
from tests.serving import chat, in_process, live, make_state, parse_stream

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 20}, "b": {"type": "integer"}, "c": {"enum": ["x", "y"]}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}}


@asynccontextmanager
async def serving(guard: Trial) -> AsyncIterator[AppState]:
    compiler = GrammarCompiler(tokenizer(), VOCAB, guard=guard)
    engine = replace(parts(slots=4, drafter=GrammarDrafter(None)), grammars=compiler)
    backend = EngineBackend(engine, "fake", SystemClock())
    backend.start()
    state = make_state(backend, tokens=tokenizer())
    yield state
    backend.close()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(NoGuard()) as state, in_process(state) as made:
        yield made


async def test_constrained_json_ends_well_or_says_that_it_was_cut(client: httpx.AsyncClient) -> None:
    """Case 12 of the public failure cases."""
    body = chat("Fill it.", temperature=1.2, response_format=FORMAT)
    cut = (await client.post(CHAT, json=body | {"max_tokens": 3, "temperature": 0})).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    for seed in range(20):
        choice = (await client.post(CHAT, json=body | {"max_tokens": 400, "seed": seed})).json()["choices"][0]
        text = choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(text), SCHEMA)
        assert sum(character.isspace() for character in text) < 0.5 * len(text)


@pytest.mark.parametrize("route", [CHAT, TEXT])
async def test_a_stream_is_the_plain_answer(client: httpx.AsyncClient, route: str) -> None:
    prompt = chat("Fill it.") if route == CHAT else {"prompt": "Fill it."}
    body = prompt | {"seed": 3, "n": 2, "max_tokens": 200, "guided_json": SCHEMA}
    plain = (await client.post(route, json=body)).json()
    streamed = parse_stream((await client.post(route, json=body | {"stream": True})).text)
    assert streamed.done
    for choice in plain["choices"]:
        text = choice["text"] if route == TEXT else choice["message"]["content"]
        assert streamed.text(choice["index"]) == text
        jsonschema.validate(json.loads(text), SCHEMA)


async def test_every_token_is_counted_and_has_its_logprob(client: httpx.AsyncClient) -> None:
    body = chat("Fill it.", seed=1, max_tokens=200, response_format=FORMAT, logprobs=True, top_logprobs=2)
    answer = (await client.post(CHAT, json=body)).json()
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    data = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"][:-1])
    assert data.decode() == choice["message"]["content"]
    assert answer["timings"]["accepted_tokens"] == answer["timings"]["drafted_tokens"] > 0


async def test_one_of_several_choices(client: httpx.AsyncClient) -> None:
    choices = ["yes", "no", "perhaps, who knows"]
    seen = set()
    for seed in range(8):
        body = chat("Well?", seed=seed, structured_outputs={"choice": choices})
        seen.add((await client.post(CHAT, json=body)).json()["choices"][0]["message"]["content"])
    assert seen <= set(choices)
    assert len(seen) > 1


async def test_a_lark_grammar(client: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "max_tokens": 60, "guided_grammar": 'start: "(" start ")" | "z"', "seed": 5}
    text = (await client.post(TEXT, json=body)).json()["choices"][0]["text"]
    assert text.count("(") == text.count(")")
    assert text.strip("()") == "z"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex", "exclude"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ],
)
async def test_a_refusal_has_its_own_status_streamed_or_not(
    client: httpx.AsyncClient, stream: bool, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = await client.post(CHAT, json=chat("x", stream=stream, **fields))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


class Person(BaseModel):
    name: str = Field(max_length=9)
    age: int = Field(ge=0, le=150)
    kind: Literal["human", "robot"]


async def test_the_openai_client_parses_answers_into_its_models() -> None:
    async with serving(NoGuard()) as state, live(state) as base:
        client = AsyncOpenAI(base_url=f"{base}/v1", api_key="none", timeout=120, max_retries=0)
        asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "seed": 4, "max_tokens": 200}
        plain = await client.beta.chat.completions.parse(response_format=Person, **asked)
        async with client.beta.chat.completions.stream(response_format=Person, **asked) as stream:
            streamed = await stream.get_final_completion()
        await client.close()
    assert isinstance(plain.choices[0].message.parsed, Person)
    assert streamed.choices[0].message.parsed == plain.choices[0].message.parsed
    assert streamed.choices[0].message.content == plain.choices[0].message.content


WORDS = (
    "type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const", "pattern",
    "minLength", "maxItems", "minimum", "multipleOf", "format", "additionalProperties", "not", "json", "regex",
    "choice", "json_schema", "name", "schema", "strict",
)  # fmt: skip
TEXTS = (
    "object",
    "string",
    "integer",
    "json_schema",
    "json_object",
    "text",
    "#",
    "#/$defs/a",
    "a+",
    "(",
    "start: a",
    "",
)


def junk(dice: random.Random, depth: int = 0) -> Any:
    """What JSON can hold, in words that mean something somewhere."""
    kind = dice.randrange(8 if depth < 4 else 5)
    if kind > 4:
        inner = [junk(dice, depth + 1) for _ in range(dice.randrange(4))]
        return inner if kind == 5 else {dice.choice(WORDS): each for each in inner}
    numbers, text = (-1, 0, 1, 2, 1e300, 0.1), dice.choice(TEXTS)
    return (None, dice.random() < 0.5, dice.choice(numbers), text, text)[kind]


async def test_no_junk_makes_a_server_error_and_good_requests_go_on() -> None:
    """300 bodies, each field with values of every kind; what is taken is answered."""
    dice = random.Random(6)
    good = chat("x", seed=1, max_tokens=100, response_format=FORMAT)
    async with serving(Guards(1, LIMITS, 120.0)) as state, in_process(state) as client:
        expected = (await client.post(CHAT, json=good)).json()["choices"]
        for number in range(300):
            body = {dice.choice(FIELDS): junk(dice), dice.choice(FIELDS): junk(dice)} if number % 9 == 0 else {}
            body = body or {dice.choice(FIELDS): junk(dice)}
            answer = await client.post(CHAT, json=chat("x", max_tokens=4, **body))
            assert answer.status_code in (200, 400), body
            if answer.status_code == 400:
                assert answer.json()["error"]["param"], body
            if number % 30 == 0:
                assert (await client.post(CHAT, json=good)).json()["choices"] == expected


async def test_what_cannot_be_constrained_says_so() -> None:
    async with in_process(make_state(FakeBackend())) as client:
        answer = await client.post(CHAT, json=chat("x", response_format={"type": "json_object"}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"
    assert answer.json()["error"]["code"] == "unsupported"
