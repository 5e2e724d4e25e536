"""Every object and event of the openai and anthropic packages, plain and streamed, against their own types."""

from __future__ import annotations

import base64
import struct
from typing import Any, Literal

import anthropic
import openai
from pydantic import BaseModel, Field
from report import run
from strict import check, check_all

MODEL, VECTORS = "smollm2:135m", "minilm"
HELLO: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "The weather", "parameters": SCHEMA, "strict": True}
CHAT: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "seed": 1}
CALL: dict[str, Any] = {
    **CHAT,
    "max_tokens": 96,
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "required",
}
RESPONSE: dict[str, Any] = {
    "model": MODEL,
    "input": "What is the weather in Paris?",
    "max_output_tokens": 24,
    "temperature": 0,
}
RESPONSE_CALL: dict[str, Any] = {
    **RESPONSE,
    "max_output_tokens": 96,
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "required",
}
MESSAGE: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "extra_body": {"temperature": 0}}
TOOL = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}
ONE_CALL = {"type": "any", "disable_parallel_tool_use": True}
MESSAGE_CALL: dict[str, Any] = {**MESSAGE, "max_tokens": 96, "tools": [TOOL], "tool_choice": ONE_CALL}


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


def _openai(base: str) -> Any:
    return openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)


def _anthropic(base: str) -> Any:
    return anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)


def chat(base: str) -> str:
    answer = _openai(base).chat.completions.create(**CHAT, n=2, logprobs=True, top_logprobs=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    return check(answer)


def chat_stream(base: str) -> str:
    client, usage = _openai(base), {"include_usage": True}
    chunks = list(client.chat.completions.create(**CHAT, n=2, logprobs=True, stream=True, stream_options=usage))
    plain = client.chat.completions.create(**CHAT, n=2)
    texts = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in plain.choices]
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    return check_all(chunks)


def chat_stream_helper(base: str) -> str:
    with _openai(base).chat.completions.stream(**CALL) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert {"chunk", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= set(kinds)
    return f"{len(kinds)} events"


def chat_tools(base: str) -> str:
    answer = _openai(base).chat.completions.create(**CALL)
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"
    return check(answer)


def chat_tools_stream(base: str) -> str:
    return check_all(_openai(base).chat.completions.create(**CALL, stream=True))


def chat_parse(base: str) -> str:
    answer = _openai(base).chat.completions.parse(**{**CHAT, "max_tokens": 96}, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)
    return repr(answer.choices[0].message.parsed)


def completion(base: str) -> str:
    return check(
        _openai(base).completions.create(model=MODEL, prompt=["Once", "Two"], max_tokens=8, logprobs=2, echo=True)
    )


def completion_stream(base: str) -> str:
    stream = _openai(base).completions.create(
        model=MODEL, prompt="Once", max_tokens=8, logprobs=2, stream=True, stream_options={"include_usage": True}
    )
    return check_all(stream)


def models(base: str) -> str:
    client = _openai(base)
    check(client.models.retrieve(MODEL))
    return check_all(client.models.list())


def embeddings(base: str) -> str:
    client = _openai(base)
    plain = client.embeddings.create(model=VECTORS, input=["a", "b"], encoding_format="float")
    packed = client.embeddings.with_raw_response.create(model=VECTORS, input="a", encoding_format="base64")
    data = base64.b64decode(packed.http_response.json()["data"][0]["embedding"])
    floats = struct.unpack(f"<{len(data) // 4}f", data)
    assert max(abs(one - two) for one, two in zip(floats, plain.data[0].embedding, strict=True)) < 1e-6
    return f"{check(plain)}, {len(floats)} dimensions"


def response(base: str) -> str:
    return check(_openai(base).responses.create(**RESPONSE, instructions="Be brief.", metadata={"a": "b"}))


def response_stream(base: str) -> str:
    return check_all(_openai(base).responses.create(**RESPONSE, stream=True, include=["message.output_text.logprobs"]))


def response_tools(base: str) -> str:
    return check(_openai(base).responses.create(**RESPONSE_CALL))


def response_tools_stream(base: str) -> str:
    return check_all(_openai(base).responses.create(**RESPONSE_CALL, stream=True))


def response_parse(base: str) -> str:
    parsed = _openai(base).responses.parse(**{**RESPONSE, "max_output_tokens": 96}, text_format=City)
    assert isinstance(parsed.output_parsed, City)
    return repr(parsed.output_parsed)


def response_kept(base: str) -> str:
    client = _openai(base)
    first = client.responses.create(**RESPONSE)
    second = client.responses.create(**RESPONSE, previous_response_id=first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    said = check_all(client.responses.input_items.list(second.id))
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError:
        return said
    raise AssertionError("a deleted response is still there")


def openai_errors(base: str) -> str:
    client, found = _openai(base), []
    for fields, wanted in (
        ({"model": "nobody"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"max_tokens": "many"}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**{**CHAT, **fields})
        except wanted as error:
            found.append(str(error.code or error.type))
        else:
            raise AssertionError(f"{fields} was accepted")
    return ", ".join(found)


def message(base: str) -> str:
    return check(_anthropic(base).messages.create(**MESSAGE, system="Be brief.", stop_sequences=["\n\n"]))


def message_stream(base: str) -> str:
    return check_all(_anthropic(base).messages.create(**MESSAGE, stream=True))


def message_stream_helper(base: str) -> str:
    with _anthropic(base).messages.stream(**MESSAGE_CALL) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[-1].type) == ("tool_use", "tool_use")
    assert set(final.content[-1].input) == {"city", "days"}
    return f"{len(kinds)} types"


def message_tools(base: str) -> str:
    return check(_anthropic(base).messages.create(**MESSAGE_CALL))


def message_tools_stream(base: str) -> str:
    return check_all(_anthropic(base).messages.create(**MESSAGE_CALL, stream=True))


def message_tool_result(base: str) -> str:
    client = _anthropic(base)
    called = client.messages.create(**MESSAGE_CALL)
    uses = [block.id for block in called.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use, "content": "sunny"} for use in uses]
    said = {"role": "assistant", "content": [block.model_dump() for block in called.content]}
    turns = [*HELLO, said, {"role": "user", "content": results}]
    return check(client.messages.create(**{**MESSAGE, "messages": turns, "tools": [TOOL]}))


def count_tokens(base: str) -> str:
    counted = _anthropic(base).messages.count_tokens(model=MODEL, messages=HELLO)
    answered = _anthropic(base).messages.create(**MESSAGE).usage
    assert counted.input_tokens == answered.input_tokens + (answered.cache_read_input_tokens or 0)
    return check(counted)


def anthropic_errors(base: str) -> str:
    found = []
    for fields, wanted in (
        ({"model": "nobody"}, anthropic.NotFoundError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
    ):
        try:
            _anthropic(base).messages.create(**{**MESSAGE, **fields})
        except wanted as error:
            found.append(error.body["error"]["type"])
        else:
            raise AssertionError(f"{fields} was accepted")
    return ", ".join(found)


CASES = (
    chat,
    chat_stream,
    chat_stream_helper,
    chat_tools,
    chat_tools_stream,
    chat_parse,
    completion,
    completion_stream,
    models,
    embeddings,
    response,
    response_stream,
    response_tools,
    response_tools_stream,
    response_parse,
    response_kept,
    openai_errors,
    message,
    message_stream,
    message_stream_helper,
    message_tools,
    message_tools_stream,
    message_tool_result,
    count_tokens,
    anthropic_errors,
)

if __name__ == "__main__":
    raise SystemExit(run(CASES))
