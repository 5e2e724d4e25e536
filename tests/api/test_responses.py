"""/v1/responses as OpenAI's own client uses it: events, tools, thoughts, and what is kept for whom."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tailrace.backends.fake import FakeBackend, say
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.serving import in_process, live, make_state, template, until
from tests.text import families

RESPONSES = "/v1/responses"
LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Looks",
    "parameters": {
        "type": "object",
        "properties": {"where": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9}},
        "required": ["where", "days"],
        "additionalProperties": False,
    },
    "strict": False,
}
SAID = (
    "<think>\nhm, 👩🏽‍🚀.\n</think>\n\nSure.\n"
    '<tool_call>\n{"name": "look", "arguments": {"where": "Žďár", "days": 2}}\n</tool_call>'
)
LOGPROBS = "message.output_text.logprobs"
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "input": "Look, Žďár.", **fields}


def talkative(text: str = SAID, **options: Any) -> FakeBackend:
    return FakeBackend(script=say(text), max_context=4096, **options)


def thinking(text: str = SAID) -> Any:
    return make_state(talkative(text), chat=template(families.THINKING))


def events(text: str) -> list[dict[str, Any]]:
    """Of a stream, each checked against the client's own type: names and types agree, numbers follow each other."""
    found = []
    for number, block in enumerate(filter(None, text.split("\n\n"))):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        EVENT.validate_python(event)
        found.append(event)
    return found


def without_ids(output: Any) -> Any:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


async def test_the_client_reads_the_same_plain_and_streamed() -> None:
    fields = body(tools=[LOOK], instructions="Be brief.", metadata={"a": "b"})
    async with live(thinking()) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        plain = await client.responses.create(**fields)
        async with client.responses.stream(**fields) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
        again = await client.responses.retrieve(plain.id)
    Response.model_validate(plain.model_dump())
    reasoning, message, call = plain.output
    assert (reasoning.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert reasoning.content is not None
    assert reasoning.content[0].text == "hm, 👩🏽‍🚀."
    assert (plain.output_text, plain.status, plain.error) == ("Sure.", "completed", None)
    assert (call.name, call.arguments) == ("look", '{"where": "Žďár", "days": 2}')
    assert plain.usage is not None
    assert plain.usage.output_tokens_details.reasoning_tokens > 0
    assert (plain.instructions, plain.metadata, plain.tool_choice) == ("Be brief.", {"a": "b"}, "auto")
    assert again == plain
    assert [item.type for item in streamed.output] == ["reasoning", "message", "function_call"]
    assert streamed.output_text == "Sure."
    assert streamed.output[2].arguments == call.arguments  # type: ignore[union-attr]
    assert kinds[0] == "response.created"
    assert kinds.count("response.completed") == 1
    assert kinds[-1] == "response.completed"


async def test_every_event_in_order() -> None:
    async with in_process(thinking()) as client:
        plain = (await client.post(RESPONSES, json=body(tools=[LOOK]))).json()
        found = events((await client.post(RESPONSES, json=body(tools=[LOOK], stream=True))).text)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert list(dict.fromkeys(kinds)) == [
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done", "output_text.delta", "output_text.done",
        "function_call_arguments.delta", "function_call_arguments.done", "completed",
    ]  # fmt: skip
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done
    assert without_ids(done) == without_ids(plain["output"])
    for kind, field in (("output_text", "text"), ("reasoning_text", "text"), ("function_call_arguments", "arguments")):
        pieces = [event["delta"] for event in found if event["type"] == f"response.{kind}.delta"]
        (whole,) = [event[field] for event in found if event["type"] == f"response.{kind}.done"]
        assert "".join(pieces) == whole
    opened = [(event["output_index"], event["item"]["id"]) for event in found if "output_item.added" in event["type"]]
    assert opened == [(place, item["id"]) for place, item in enumerate(done)]
    assert found[-1]["response"]["timings"]["completion_tokens"] == plain["usage"]["output_tokens"]


async def test_thoughts_as_a_summary() -> None:
    async with in_process(thinking()) as client:
        asked = body(reasoning={"summary": "auto"})
        plain = (await client.post(RESPONSES, json=asked)).json()
        found = events((await client.post(RESPONSES, json=asked | {"stream": True})).text)
    assert plain["output"][0]["summary"] == [{"type": "summary_text", "text": "hm, 👩🏽‍🚀."}]
    assert plain["output"][0]["content"] == []
    kinds = [event["type"].removeprefix("response.") for event in found]
    first, last = kinds.index("reasoning_summary_part.added"), kinds.index("reasoning_summary_part.done")
    assert set(kinds[first + 1 : last - 1]) == {"reasoning_summary_text.delta"}
    assert kinds[last - 1] == "reasoning_summary_text.done"


async def test_an_answer_that_is_cut_says_so() -> None:
    async with in_process(make_state(talkative("one two"))) as client:
        plain = (await client.post(RESPONSES, json=body(max_output_tokens=5))).json()
        found = events((await client.post(RESPONSES, json=body(max_output_tokens=5, stream=True))).text)
    last = found[-1]["response"]
    assert found[-1]["type"] == "response.incomplete"
    for response in (plain, last):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (response["output"][0]["status"], response["completed_at"]) == ("incomplete", None)
        assert response["output"][0]["content"][0]["text"] == "one t"


async def test_an_answer_of_nothing_is_an_empty_message() -> None:
    async with in_process(make_state(talkative(""))) as client:
        plain = (await client.post(RESPONSES, json=body())).json()
        found = events((await client.post(RESPONSES, json=body(stream=True))).text)
    assert [item["content"][0]["text"] for item in plain["output"]] == [""]
    assert without_ids(found[-1]["response"]["output"]) == without_ids(plain["output"])


async def test_log_probabilities_are_of_the_text() -> None:
    async with in_process(make_state(talkative("Žx"))) as client:
        asked = body(include=[LOGPROBS], top_logprobs=2)
        plain = (await client.post(RESPONSES, json=asked)).json()
        found = events((await client.post(RESPONSES, json=asked | {"stream": True})).text)
    entries = plain["output"][0]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries[:-1] for byte in entry["bytes"]).decode() == "Žx"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    streamed = [entry for event in found if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == entries


async def test_going_on_from_an_earlier_response() -> None:
    backend = talkative()
    async with in_process(make_state(backend, chat=template(families.CHATML_TOOLS))) as client:
        first = (await client.post(RESPONSES, json=body(tools=[LOOK], instructions="Be brief."))).json()
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "20 °C"}
        asked = {"input": [result], "previous_response_id": first["id"], "tools": [LOOK], "tool_choice": "none"}
        second = (await client.post(RESPONSES, json=asked)).json()
        listed = (await client.get(f"{RESPONSES}/{second['id']}/input_items", params={"order": "asc"})).json()
        unanswered = await client.post(RESPONSES, json=asked | {"input": "And?"})
    assert second["previous_response_id"] == first["id"]
    prompt = backend.tokenizer.decode(backend.prompts[1].tolist())
    assert "Be brief." not in prompt  # instructions are of their own response
    assert "Look, Žďár." in prompt
    assert '"name": "look", "arguments": {"where": "Žďár", "days": 2}' in prompt
    assert "<tool_response>\n20 °C" in prompt
    assert [item["type"] for item in listed["data"]] == ["message", "message", "function_call", "function_call_output"]
    assert unanswered.status_code == 400
    assert unanswered.json()["error"]["param"] == "input"


async def test_items_of_earlier_responses_by_reference() -> None:
    backend = talkative()
    async with in_process(make_state(backend, chat=template(families.CHATML_TOOLS))) as client:
        first = (await client.post(RESPONSES, json=body(tools=[LOOK]))).json()
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 °C"}
        said = [{"role": "user", "content": "Look, Žďár."}, {"type": "item_reference", "id": call["id"]}, result]
        second = await client.post(RESPONSES, json={"input": said, "tools": [LOOK]})
        written = [said[0], {key: call[key] for key in ("type", "call_id", "name", "arguments")}, result]
        third = await client.post(RESPONSES, json={"input": written, "tools": [LOOK]})
        listed = (await client.get(f"{RESPONSES}/{second.json()['id']}/input_items", params={"order": "asc"})).json()
        lost = await client.post(RESPONSES, json={"input": [{"id": "msg_" + "0" * 34}]})
        many = await client.post(RESPONSES, json={"input": [{"id": call["id"]}] * 129})
    assert (second.status_code, third.status_code) == (200, 200)
    assert backend.prompts[1].tolist() == backend.prompts[2].tolist()
    assert listed["data"][1] == call
    assert (lost.status_code, lost.json()["error"]["param"]) == (404, "input[0].id")
    assert (many.status_code, many.json()["error"]["param"]) == (400, "input")


async def test_input_tokens_are_those_of_the_prompt() -> None:
    async with live(thinking()) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as client:
        fields: Any = body(tools=[LOOK], instructions="Be brief.")
        made = await client.responses.create(**fields)
        counted = await client.responses.input_tokens.count(**fields)
        assert made.usage is not None
        assert counted.input_tokens == made.usage.input_tokens
        on: Any = body(
            previous_response_id=made.id,
            input=[{"type": "function_call_output", "output": "20", "call_id": made.output[-1].call_id}],
            tools=[LOOK],
        )  # type: ignore[union-attr]
        later = await client.responses.create(**on)
        assert later.usage is not None
        assert (await client.responses.input_tokens.count(**on)).input_tokens == later.usage.input_tokens
        too_long = await client.responses.input_tokens.count(model="fake", input="x" * 5000)
        assert too_long.input_tokens > 5000


async def test_pages_of_input_items() -> None:
    said = [{"role": "user", "content": [{"type": "input_text", "text": str(i)}]} for i in range(5)]
    async with live(make_state(talkative("ok"))) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        made = await client.responses.create(model="fake", input=said)  # type: ignore[arg-type]
        texts = [
            item.content[0].text  # type: ignore[union-attr]
            async for item in client.responses.input_items.list(made.id, limit=2, order="asc")
        ]
        latest = await client.responses.input_items.list(made.id, limit=1)
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.responses.input_items.list(made.id, limit=101)
        with pytest.raises(openai.BadRequestError) as unknown:
            await client.responses.input_items.list(made.id, after="msg_1")
    assert texts == ["0", "1", "2", "3", "4"]
    assert latest.data[0].content[0].text == "4"  # type: ignore[union-attr]
    assert latest.has_more
    assert (wrong.value.param, unknown.value.param) == ("limit", "after")


async def test_what_is_not_kept_is_not_found() -> None:
    state = make_state(talkative("ok"))
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as client:
        made = await client.responses.create(model="fake", input="hi")
        passing = await client.responses.create(model="fake", input="hi", store=False)
        with pytest.raises(openai.BadRequestError) as synchronous:
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        for gone in (made.id, passing.id):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(gone)
            with pytest.raises(openai.NotFoundError):
                await client.responses.cancel(gone)
            with pytest.raises(openai.BadRequestError) as lost:
                await client.responses.create(model="fake", input="hi", previous_response_id=gone)
            assert lost.value.code == "previous_response_not_found"
    assert synchronous.value.message.endswith("Cannot cancel a synchronous response.")


async def test_a_tenant_reads_its_own_alone() -> None:
    def digest(key: str) -> str:
        return hashlib.sha256(key.encode()).hexdigest()

    tenants = tuple(TenantPolicy(name, keys=(KeyPolicy(name, digest(name)),)) for name in ("a", "b"))
    async with in_process(make_state(talkative("ok"), policy=Policy(tenants=tenants))) as client:
        mine, other = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        made = (await client.post(RESPONSES, json=body(), headers=mine)).json()
        path = f"{RESPONSES}/{made['id']}"
        for method, place in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            assert (await client.request(method, path + place, headers=other)).status_code == 404
        asked = body(previous_response_id=made["id"])
        assert (await client.post(RESPONSES, json=asked, headers=other)).status_code == 400
        assert (await client.post(RESPONSES, json=asked, headers=mine)).status_code == 200
        assert (await client.get(path, headers=mine)).json() == made


class Place(BaseModel):
    where: str
    days: int


async def test_calls_that_must_be_are_valid(random_model: httpx.AsyncClient) -> None:
    asked = body(tools=[LOOK], tool_choice={"type": "function", "name": "look"}, max_output_tokens=200, seed=4)
    plain = (await random_model.post(RESPONSES, json=asked)).json()
    found = events((await random_model.post(RESPONSES, json=asked | {"stream": True})).text)
    (call,) = plain["output"]
    assert (call["type"], call["status"]) == ("function_call", "completed")
    Place.model_validate_json(call["arguments"])
    assert without_ids(found[-1]["response"]["output"]) == without_ids(plain["output"])


async def test_parse_gives_the_clients_own_model(random_model: httpx.AsyncClient) -> None:
    schema = {**LOOK["parameters"], "required": ["where", "days"]}
    form = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
    asked = body(text={"format": form}, max_output_tokens=200, seed=3)
    plain = (await random_model.post(RESPONSES, json=asked)).json()
    assert plain["text"]["format"] == form
    assert plain["status"] == "completed"
    Place.model_validate_json(plain["output"][0]["content"][0]["text"])


async def test_parse_of_the_client() -> None:
    class Loose(FakeBackend):
        async def check(self, request: Any) -> None:
            pass  # its script follows the schema

    state = make_state(Loose(script=say('{"where": "Brno", "days": 1}'), max_context=4096))
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        parsed = await client.responses.parse(model="fake", input="hi", text_format=Place)
        async with client.responses.stream(model="fake", input="hi", text_format=Place) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
    assert parsed.output_parsed == streamed.output_parsed == Place(where="Brno", days=1)


async def test_a_failure_within_a_stream_is_its_last_event() -> None:
    backend = talkative("a" * 50, manual=True)
    state = make_state(backend)
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as client:
        stream = await client.responses.create(**body(), stream=True)
        await until(lambda: backend.load().running == 1)
        backend.step()
        iterator = aiter(stream)
        assert (await anext(iterator)).type == "response.created"
        await state.pipeline.stop()
        rest = [event async for event in iterator]
    assert rest[-1].type == "response.failed"
    assert rest[-1].response.status == "failed"
    assert rest[-1].response.error is not None
    assert "stopping" in rest[-1].response.error.message
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))


async def test_what_an_answer_repeats_may_be_as_deep_as_a_body() -> None:
    deep: Any = {}
    for _ in range(190):
        deep = {"a": deep}
    form = {"type": "text", "x": deep}
    async with in_process(make_state(talkative("ok"))) as client:
        plain = await client.post(RESPONSES, json=body(text={"format": form}))
        streamed = await client.post(RESPONSES, json=body(text={"format": form}, stream=True))
        again = await client.get(f"{RESPONSES}/{plain.json()['id']}")
    assert plain.json()["text"]["format"] == form
    assert again.json() == plain.json()
    assert events(streamed.text)[-1]["type"] == "response.completed"
