"""Tools over HTTP, with the openai package as people use it: what a stream says is what the plain answer says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import FakeBackend, say
from tailrace.clock import SystemClock
from tailrace.engine.grammar.compiler import GrammarCompiler
from tailrace.engine.grammar.drafter import GrammarDrafter
from tests.engine.support import VOCAB, NoGuard, parts, tokenizer
from tests.serving import Streamed, chat, in_process, live, make_state, parse_stream

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "where": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["where", "days"],
}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
LAMP: dict[str, Any] = {"type": "function", "function": {"name": "lamp_on"}}
TOOLS: list[Any] = [LOOK, LAMP]
SAID = (
    'Sure, Žďár.\n<tool_call>\n{"name": "look", "arguments": {"where": "Žďár 👩🏽‍🚀", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "lamp_on", "arguments": {}}\n</tool_call>'
)
NOBODY = '<tool_call>{"name": "nobody"}</tool_call>'
CALLS = [("look", '{"where": "Žďár 👩🏽‍🚀", "days": 2}'), ("lamp_on", "{}")]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """An engine that draws at random what its grammars allow."""
    compiler = GrammarCompiler(tokenizer(), VOCAB, guard=NoGuard())
    engine = replace(parts(slots=4, drafter=GrammarDrafter(None)), grammars=compiler)
    backend = EngineBackend(engine, "fake", SystemClock())
    backend.start()
    state = make_state(backend, tokens=tokenizer())
    async with in_process(state) as made:
        yield made
    backend.close()


def talkative(text: str = SAID) -> FakeBackend:
    return FakeBackend(script=say(text), max_context=4096)


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def streamed_message(streamed: Streamed, index: int = 0) -> dict[str, Any]:
    """The deltas put together: each call has one id and one name, in its first delta."""
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    for choice in streamed.choices(index):
        delta = choice["delta"]
        if delta.get("content") is not None:
            message["content"] = (message["content"] or "") + delta["content"]
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(calls)
                calls.append({"id": piece["id"], "type": piece["type"], "function": dict(piece["function"])})
            else:
                assert piece["index"] == len(calls) - 1
                assert piece["function"].keys() == {"arguments"}
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return {**message, "tool_calls": calls} if calls else message


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], Streamed]:
    plain = await client.post(CHAT, json=body)
    assert plain.status_code == 200, plain.text
    return plain.json(), parse_stream((await client.post(CHAT, json=body | {"stream": True})).text)


async def test_calls_and_the_text_before_them() -> None:
    async with in_process(make_state(talkative())) as client:
        plain, streamed = await both(client, chat(tools=TOOLS, n=2, logprobs=True))
    for choice in plain["choices"]:
        message = choice["message"]
        assert message["content"] == "Sure, Žďár."
        assert calls_of(message) == CALLS
        assert choice["finish_reason"] == "tool_calls"
        told = streamed_message(streamed, choice["index"])
        assert told["content"] == message["content"]
        assert calls_of(told) == CALLS
        assert streamed.finish(choice["index"]) == ["tool_calls"]
        logprobs = [
            entry
            for one in streamed.choices(choice["index"])
            for entry in (one["logprobs"] or {"content": []})["content"]
        ]
        assert logprobs == choice["logprobs"]["content"]
    ids = [call["id"] for choice in plain["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4
    assert streamed.done


@pytest.mark.parametrize(
    ("said", "fields", "message", "reason"),
    [
        ("Only words. ", {}, {"content": "Only words. "}, "stop"),
        ("", {}, {"content": ""}, "stop"),
        (SAID, {"stop": "Žďár 👩"}, {"content": "Sure, Žďár.", "calls": [("look", '{"where": "')]}, "stop"),
        (SAID, {"max_tokens": 20}, {"content": "Sure, Žďár.\n<tool"}, "length"),
        (SAID, {"tool_choice": "none"}, {"content": SAID}, "stop"),
        (NOBODY, {}, {"content": NOBODY}, "stop"),
        ('<tool_call>{"name": "lamp_on"}', {}, {"content": None, "calls": [("lamp_on", "{}")]}, "tool_calls"),
    ],
)  # fmt: skip
async def test_whatever_the_answer_is_a_stream_says_the_same(
    said: str, fields: dict[str, Any], message: dict[str, Any], reason: str
) -> None:
    async with in_process(make_state(talkative(said))) as client:
        plain, streamed = await both(client, chat(tools=TOOLS, **fields))
    (choice,) = plain["choices"]
    for found in (choice["message"], streamed_message(streamed)):
        assert found["content"] == message["content"]
        assert calls_of(found) == message.get("calls", [])
    assert choice["finish_reason"] == reason
    assert streamed.finish() == [reason]


async def test_an_answer_that_must_be_a_call_is_one(client: httpx.AsyncClient) -> None:
    for seed in range(8):
        body = chat(tools=TOOLS, tool_choice="required", seed=seed, max_tokens=900)
        plain, streamed = await both(client, body)
        (choice,) = plain["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        calls = calls_of(choice["message"])
        assert 1 <= len(calls) <= 8
        assert calls_of(streamed_message(streamed)) == calls
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), {"look": SCHEMA, "lamp_on": {"maxProperties": 0}}[name])


async def test_a_tool_without_parameters(client: httpx.AsyncClient) -> None:
    """Case 06 of the public failure cases."""
    named = {"type": "function", "function": {"name": "lamp_on"}}
    plain, streamed = await both(client, chat(tools=TOOLS, tool_choice=named, max_tokens=200))
    assert calls_of(plain["choices"][0]["message"]) == [("lamp_on", "{}")]
    assert calls_of(streamed_message(streamed)) == [("lamp_on", "{}")]


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_their_status(client: httpx.AsyncClient, stream: bool) -> None:
    looking = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    for fields, param in (
        ({"tools": [LOOK, LOOK]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [looking], "tool_choice": "required"}, "tools"),
    ):
        answer = await client.post(CHAT, json=chat(stream=stream, **fields))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_a_conversation_with_results_is_counted_the_same_by_tokenize() -> None:
    async with in_process(make_state(talkative())) as client:
        plain = (await client.post(CHAT, json=chat(tools=TOOLS))).json()["choices"][0]["message"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "20"} for call in plain["tool_calls"]]
        messages = [{"role": "user", "content": "hi"}, plain, *results]
        body = {"messages": messages, "tools": TOOLS}
        answer = (await client.post(CHAT, json=body)).json()
        counted = (await client.post("/tokenize", json=body)).json()["count"]
    assert answer["usage"]["prompt_tokens"] == counted


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_best_of_several_keeps_its_own_reason(order: tuple[int, int]) -> None:
    texts = [
        '<tool_call>{"name": "lamp_on"}</tool_call>',
        "Only many more words than the call has got, and still more.",
    ]
    backend = FakeBackend(script=lambda request, index: texts[order[index]].encode(), max_context=4096)
    async with in_process(make_state(backend)) as client:
        (choice,) = (await client.post(CHAT, json=chat(tools=TOOLS, best_of=2, n=1))).json()["choices"]
    assert choice["finish_reason"] == ("tool_calls" if calls_of(choice["message"]) else "stop")


class Look(BaseModel):
    where: str
    days: int


async def test_the_openai_client_reads_calls() -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    async with (
        live(make_state(talkative())) as base,
        AsyncOpenAI(base_url=base + "/v1", api_key="x") as openai,
        openai.chat.completions.stream(model="fake", messages=messages, tools=TOOLS) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = (await stream.get_final_completion()).choices[0]
        plain = (await openai.chat.completions.create(model="fake", messages=messages, tools=TOOLS)).choices[0]
        told = [final, plain]
        messages += [
            plain.message,
            {"role": "tool", "tool_call_id": (plain.message.tool_calls or [])[0].id, "content": "1"},
        ]
        again = await openai.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
    for choice in told:
        assert choice.message.content == "Sure, Žďár."
        assert choice.finish_reason == "tool_calls"
        calls: list[Any] = list(choice.message.tool_calls or [])
        assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
        assert Look.model_validate_json(calls[0].function.arguments).days == 2
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert again.choices[0].finish_reason == "tool_calls"
