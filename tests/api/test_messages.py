"""/v1/messages as Anthropic's own client uses it, and what it refuses in its own form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tailrace.backends.fake import FakeBackend, say
from tests.serving import in_process, live, make_state, template, until
from tests.text import families

MESSAGES = "/v1/messages"
USER: list[Any] = [{"role": "user", "content": "Look, Žďár."}]
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Looks",
    "input_schema": {
        "type": "object",
        "properties": {"where": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9}},
        "required": ["where", "days"],
    },
}
LAMP: dict[str, Any] = {"name": "lamp_on", "input_schema": {"type": "object"}}
SAID = (
    "<think>\nhm, 👩🏽‍🚀.\n</think>\n\nSure.\n"
    '<tool_call>\n{"name": "look", "arguments": {"where": "Žďár", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "lamp_on"}\n</tool_call>'
)
THINK: Any = {"type": "enabled", "budget_tokens": 1024}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "max_tokens": 2000, "messages": USER, **fields}


def talkative(text: str = SAID, **options: Any) -> FakeBackend:
    return FakeBackend(script=say(text), max_context=4096, **options)


def events(text: str) -> list[dict[str, Any]]:
    """Of a stream, each checked against the client's own type; names and types agree."""
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        found.append(event)
    return found


async def test_the_client_reads_the_same_plain_and_streamed() -> None:
    state = make_state(talkative(), chat=template(families.THINKING))
    fields = body(tools=[LOOK, LAMP], thinking=THINK, system="Be brief.")
    async with live(state) as base, AsyncAnthropic(base_url=base, api_key="x") as client:
        plain = await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(
            model="fake", messages=USER, tools=fields["tools"], thinking=THINK, system="Be brief."
        )
    thought, text, look, lamp = plain.content
    assert (thought.type, text.type, look.type, lamp.type) == ("thinking", "text", "tool_use", "tool_use")
    assert (thought.thinking, text.text) == ("hm, 👩🏽‍🚀.", "Sure.")
    assert thought.signature
    assert (look.name, look.input, lamp.input) == ("look", {"where": "Žďár", "days": 2}, {})
    assert look.id.startswith("toolu_")
    assert look.id != lamp.id
    assert (plain.stop_reason, plain.stop_sequence, plain.role) == ("tool_use", None, "assistant")
    assert [block.model_dump(exclude={"id"}) for block in streamed.content] == [
        block.model_dump(exclude={"id"}) for block in plain.content
    ]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", plain.usage.output_tokens)
    usage = streamed.usage
    assert usage.cache_read_input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens == plain.usage.input_tokens
    assert {"thinking", "signature", "text", "input_json", "content_block_stop", "message_stop"} <= set(kinds)


async def test_events_in_order_with_one_end() -> None:
    async with in_process(make_state(talkative(), chat=template(families.THINKING))) as client:
        answer = await client.post(MESSAGES, json=body(tools=[LOOK, LAMP], thinking=THINK, stream=True))
    found = events(answer.text)
    kinds = [event["type"] for event in found]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_stop") == kinds.count("message_delta") == 1
    assert [event["index"] for event in found if event["type"] == "content_block_start"] == [0, 1, 2, 3]
    deltas = [event["delta"]["type"] for event in found if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert found[0]["message"]["usage"]["output_tokens"] == 0
    assert found[-2]["timings"]["completion_tokens"] == found[-2]["usage"]["output_tokens"]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.headers["x-tailrace-class"] == "agent"


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({}, "end_turn", None, "one two three"),
        ({"max_tokens": 5}, "max_tokens", None, "one t"),
        ({"stop_sequences": ["zero", " thr"]}, "stop_sequence", " thr", "one two"),
    ],
)
async def test_why_it_stopped(fields: dict[str, Any], reason: str, sequence: str | None, text: str) -> None:
    async with in_process(make_state(talkative("one two three"))) as client:
        plain = (await client.post(MESSAGES, json=body(**fields))).json()
        found = events((await client.post(MESSAGES, json=body(**fields, stream=True))).text)
    assert (plain["stop_reason"], plain["stop_sequence"]) == (reason, sequence)
    assert plain["content"] == [{"type": "text", "text": text}]
    delta = found[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == (reason, sequence)


async def test_an_answer_of_nothing_has_no_blocks() -> None:
    async with in_process(make_state(talkative(""))) as client:
        plain = (await client.post(MESSAGES, json=body())).json()
        found = events((await client.post(MESSAGES, json=body(stream=True))).text)
    assert (plain["content"], plain["stop_reason"]) == ([], "end_turn")
    assert [event["type"] for event in found] == ["message_start", "ping", "message_delta", "message_stop"]


async def test_thoughts_left_out_keep_their_signature() -> None:
    state = make_state(talkative(), chat=template(families.THINKING))
    shown, hidden = THINK, THINK | {"display": "omitted"}
    async with in_process(state) as client:
        first = (await client.post(MESSAGES, json=body(thinking=shown))).json()["content"][0]
        second = (await client.post(MESSAGES, json=body(thinking=hidden))).json()["content"][0]
        found = events((await client.post(MESSAGES, json=body(thinking=hidden, stream=True))).text)
    assert (second["thinking"], second["signature"]) == ("", first["signature"])
    assert "thinking_delta" not in [event["delta"]["type"] for event in found if "delta" in event and "index" in event]


async def test_arguments_that_are_no_json_come_as_an_object() -> None:
    said = '<tool_call>\n{"name": "look", "arguments": {"where": oops}}\n</tool_call>'
    async with in_process(make_state(talkative(said))) as client:
        plain = (await client.post(MESSAGES, json=body(tools=[LOOK]))).json()
        found = events((await client.post(MESSAGES, json=body(tools=[LOOK], stream=True))).text)
    assert plain["content"][0]["input"] == {"_raw": '{"where": oops}'}
    pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == plain["content"][0]["input"]


async def test_a_call_that_is_cut_has_what_is_there_of_it() -> None:
    cut = SAID.index("Žďár", SAID.index("tool_call"))
    length = len(SAID[:cut].encode()) + 2
    state = make_state(talkative(), chat=template(families.THINKING))
    async with live(state) as base, AsyncAnthropic(base_url=base, api_key="x") as client:
        fields = body(tools=[LOOK, LAMP], thinking={"type": "adaptive"}, max_tokens=length)
        plain = await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            streamed = await stream.get_final_message()
    for message in (plain, streamed):
        assert message.stop_reason == "max_tokens"
        assert message.content[-1].type == "tool_use"
        assert message.content[-1].input == {}


class Place(BaseModel):
    where: str
    days: int


@pytest.mark.parametrize(
    ("choice", "most"),
    [
        ({"type": "any"}, 8),
        ({"type": "any", "disable_parallel_tool_use": True}, 1),
        ({"type": "tool", "name": "look"}, 1),
    ],
)
async def test_calls_that_must_be_are_valid(random_model: httpx.AsyncClient, choice: Any, most: int) -> None:
    fields = body(tools=[LOOK], tool_choice=choice, max_tokens=150, seed=4)
    plain = (await random_model.post(MESSAGES, json=fields)).json()
    found = events((await random_model.post(MESSAGES, json=fields | {"stream": True})).text)
    blocks = [block for block in plain["content"] if block["type"] == "tool_use"]
    whole = blocks if plain["stop_reason"] == "tool_use" else blocks[:-1]
    assert 1 <= len(blocks) <= most
    for block in whole:
        Place.model_validate(block["input"])
    pieces: dict[int, str] = {}
    for event in found:
        if event["type"] == "content_block_delta":
            pieces[event["index"]] = pieces.get(event["index"], "") + event["delta"].get("partial_json", "")
    assert [json.loads(text) for text in [*pieces.values()][: len(whole)]] == [block["input"] for block in whole]


async def test_an_answer_of_a_schema(random_model: httpx.AsyncClient) -> None:
    schema = LOOK["input_schema"]
    fields = body(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=150, seed=3)
    plain = (await random_model.post(MESSAGES, json=fields)).json()
    assert plain["stop_reason"] in ("end_turn", "max_tokens")
    if plain["stop_reason"] == "end_turn":
        Place.model_validate_json(plain["content"][0]["text"])


async def test_errors_are_the_clients_own_classes() -> None:
    keys = (hashlib.sha256(b"good").hexdigest(),)
    async with live(make_state(talkative("ok"), api={"api_keys": keys})) as base:
        async with AsyncAnthropic(base_url=base, api_key="bad", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await client.messages.create(**body())
        async with AsyncAnthropic(base_url=base, api_key="good", max_retries=0) as client:
            assert (await client.messages.create(**body())).content[0].type == "text"
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.messages.create(**body(model="nope"))
            with pytest.raises(anthropic.BadRequestError) as wrong:
                await client.messages.create(**body(), extra_body={"top_k": -1}, stream=True)
    shown: Any = unknown.value.body
    assert (shown["type"], shown["error"]["type"]) == ("error", "authentication_error")
    assert shown["request_id"] == unknown.value.request_id
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert "top_k" in wrong.value.message


async def test_a_failure_within_a_stream_is_its_last_event() -> None:
    backend = talkative("a" * 50, manual=True)
    state = make_state(backend)
    async with live(state) as base, AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as client:
        stream = await client.messages.create(**body(), stream=True)
        await until(lambda: backend.load().running == 1)
        backend.step()
        iterator = aiter(stream)
        assert (await anext(iterator)).type == "message_start"
        await state.pipeline.stop()
        with pytest.raises(anthropic.APIStatusError) as failed:
            async for _ in iterator:
                pass
    assert failed.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


async def test_other_ways_into_the_error_form() -> None:
    async with in_process(make_state(api={"max_body_bytes": 2048})) as client:
        large = await client.post(MESSAGES, json=body(messages=[{"role": "user", "content": "x" * 3000}]))
        method = await client.get(MESSAGES)
        route = await client.post(MESSAGES + "/batches", json={})
        broken = await client.post(MESSAGES, content=b"{")
        version = await client.post(MESSAGES, json=body(), headers={"anthropic-version": "2023-01-01"})
        good = await client.post(MESSAGES, json=body(), headers={"anthropic-version": "2026-10-21"})
    found = [(each.status_code, each.json()["error"]["type"]) for each in (large, method, route, broken, version)]
    assert found == [
        (413, "request_too_large"),
        (405, "invalid_request_error"),
        (404, "not_found_error"),
        (400, "invalid_request_error"),
        (400, "invalid_request_error"),
    ]
    assert all(each.json()["type"] == "error" and each.json()["request_id"] for each in (large, method, route, broken))
    assert good.status_code == 200
