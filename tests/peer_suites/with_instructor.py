"""The instructor package: its ways to get a typed object out of a model, plain and streamed."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from instructor.core.exceptions import IncompleteOutputException
from pydantic import BaseModel, Field
from report import run


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


ASKED: dict[str, Any] = {
    "model": "smollm2:135m",
    "messages": [{"role": "user", "content": "Which city is the capital of France?"}],
    "max_tokens": 120,
    "max_retries": 0,
    "temperature": 0,
}


def _client(base: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0), mode=mode)


def _city(base: str, mode: instructor.Mode) -> str:
    city = _client(base, mode).chat.completions.create(**ASKED, response_model=City)
    assert isinstance(city, City)
    return repr(city)


def tools(base: str) -> str:
    return _city(base, instructor.Mode.TOOLS)


def tools_strict(base: str) -> str:
    return _city(base, instructor.Mode.TOOLS_STRICT)


def json_schema(base: str) -> str:
    return _city(base, instructor.Mode.JSON_SCHEMA)


def json_object(base: str) -> str:
    """The schema is only told in the prompt, which so small a model repeats at length: a cut is told."""
    try:
        answer = _client(base, instructor.Mode.JSON).chat.completions.create(**ASKED, response_model=Anything)
    except IncompleteOutputException as cut:
        return f"cut: {cut.last_completion.choices[0].finish_reason}"
    return f"{len(answer.model_dump())} fields"


class Anything(BaseModel, extra="allow"):
    pass


def partial(base: str) -> str:
    stream = _client(base, instructor.Mode.TOOLS).chat.completions.create_partial(**ASKED, response_model=City)
    steps = list(stream)
    assert City.model_validate(steps[-1].model_dump())
    return f"{len(steps)} steps to {steps[-1].model_dump()}"


def with_completion(base: str) -> str:
    client = _client(base, instructor.Mode.TOOLS)
    city, answer = client.chat.completions.create_with_completion(**ASKED, response_model=City)
    assert isinstance(city, City)
    assert answer.usage.completion_tokens > 0
    return answer.choices[0].finish_reason


if __name__ == "__main__":
    raise SystemExit(run((tools, tools_strict, json_schema, json_object, partial, with_completion)))
