"""The langchain-openai package: chat models, tools, typed answers, streams, Responses, completions, embeddings."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from report import run

MODEL = "smollm2:135m"
ASKED = "Which city is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


def _chat(base: str, **options: Any) -> ChatOpenAI:
    fields = {"max_tokens": 120, "temperature": 0, **options}
    return ChatOpenAI(base_url=base + "/v1", api_key="none", model=MODEL, max_retries=0, **fields)


def invoke(base: str) -> str:
    answer = _chat(base, max_tokens=16).invoke(ASKED)
    assert answer.usage_metadata["output_tokens"] <= 16
    return repr(answer.text[:40])


def stream(base: str) -> str:
    chat = _chat(base, max_tokens=16)
    chunks = list(chat.stream(ASKED))
    assert "".join(chunk.text for chunk in chunks) == chat.invoke(ASKED).text
    return f"{len(chunks)} chunks"


def batch(base: str) -> str:
    chat = _chat(base, max_tokens=8)
    answers = asyncio.run(chat.abatch([ASKED] * 4))
    assert len({answer.text for answer in answers}) == 1
    return f"{len(answers)} answers"


def tools(base: str) -> str:
    chat = _chat(base).bind_tools([weather], tool_choice="any")
    called = chat.invoke(ASKED)
    assert all(call["name"] == "weather" for call in called.tool_calls)
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
    assert results
    again = _chat(base, max_tokens=8).bind_tools([weather]).invoke([HumanMessage(ASKED), called, *results])
    return f"{len(called.tool_calls)} calls, then {again.response_metadata['finish_reason']}"


def tools_stream(base: str) -> str:
    chunks = list(_chat(base).bind_tools([weather], tool_choice="weather").stream(ASKED))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert set(whole.tool_calls[0]["args"]) == {"city", "days"}
    return f"{len(chunks)} chunks"


def structured(base: str) -> str:
    found = {
        m: _chat(base).with_structured_output(City, method=m).invoke(ASKED) for m in ("json_schema", "function_calling")
    }
    assert all(isinstance(city, City) for city in found.values())
    return repr(found)


def responses(base: str) -> str:
    chat = _chat(base, use_responses_api=True, max_tokens=16)
    text = "".join(chunk.text for chunk in chat.stream(ASKED))
    assert text == chat.invoke(ASKED).text
    return repr(text[:40])


def completions(base: str) -> str:
    model = OpenAI(base_url=base + "/v1", api_key="none", model=MODEL, max_tokens=8, temperature=0, max_retries=0)
    said = model.invoke("Once upon")
    assert said == "".join(model.stream("Once upon"))
    return repr(said)


def embeddings(base: str) -> str:
    """Texts as strings: the package's own counting of tokens needs a file from the network."""
    model = OpenAIEmbeddings(
        base_url=base + "/v1", api_key="none", model="minilm", check_embedding_ctx_length=False, max_retries=0
    )
    one, two = model.embed_documents(["a cat", "a dog"])
    assert max(abs(a - b) for a, b in zip(one, model.embed_query("a cat"), strict=True)) < 1e-6
    return f"{len(two)} dimensions"


if __name__ == "__main__":
    raise SystemExit(run((invoke, stream, batch, tools, tools_stream, structured, responses, completions, embeddings)))
