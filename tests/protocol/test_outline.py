"""Anthropic's and OpenAI's newer forms: streamed and plain say the same, whatever the cuts."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form
from tailrace.protocol.messages.answer import MessageAnswer
from tailrace.protocol.responses.answer import ResponseAnswer
from tailrace.text.parsers.delta import Signature
from tailrace.text.parsers.formats import FORMATS
from tailrace.text.parsers.reasoning import REASONING, Reasoning
from tailrace.types import (
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
    StopConditions,
    TokenEvent,
    Usage,
)  # fmt: skip

USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2)
TIMES = timings(Timeline(ManualClock()))
TOOLS = (Signature("look", ("where",)), Signature("lamp_on"))
TEXTS = (
    "Plain, Žďár 👩🏽‍🚀.",
    "<think>\nhm\n</think>\n\nSo it is.",
    '<tool_call>\n{"name": "look", "arguments": {"where": "Žďár", "n": [1, {"a": null}]}}\n</tool_call>',
    '<think>a</think>Sure.\n<tool_call>{"name": "lamp_on"}</tool_call>\n'
    '<tool_call>{"name": "look", "arguments": {"where": "x"}}</tool_call> done',
    '<tool_call>{"name": "look", "arguments": {"where": wrong}}</tool_call>',
    '<tool_call>{"name": "nobody"}</tool_call>',
    "",
)
DEFAULTS: dict[str, Any] = {"response": {"reasoning": {"summary": None}}}


def reader() -> Reasoning:
    return Reasoning(REASONING["think"], FORMATS["hermes"].make(TOOLS), inside=False)


def make(kind: type[Form], *, constrained: bool) -> Form:
    grammar = Grammar(GrammarKind.LARK, "start: calls") if constrained else None
    prompt = np.array([1, 2, 3], np.int32)
    request = GenerateRequest("id", "m", prompt, SamplingParams(), StopConditions(9), grammar=grammar)
    return kind(Ask((request,), True, False, 1, False, reader=partial(reader), about=DEFAULTS), "resp_1", 1234)


def cut(text: str, places: list[int], finish: FinishReason) -> list[TokenEvent]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    pieces = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return [TokenEvent(0, piece, (1,)) for piece in pieces] + [TokenEvent(0, finish=finish)]


def plainly(answer: Form, events: list[TokenEvent]) -> dict[str, Any]:
    for event in events:
        answer.collect(0, event)
    found: dict[str, Any] = orjson.loads(answer.body(USAGE, TIMES))
    return found


def streamed(answer: Form, events: list[TokenEvent]) -> list[dict[str, Any]]:
    data = b"".join(answer.chunk(0, event) for event in events) + answer.end(USAGE, TIMES)
    return [json.loads(block.split("\ndata: ")[1]) for block in data.decode().split("\n\n") if block]


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A message put together from its events, as clients do."""
    message: dict[str, Any] = events[0]["message"]
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], message["content"][event["index"]]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
        elif event["type"] == "message_delta":
            message |= {key: event["delta"][key] for key in ("stop_reason", "stop_sequence")}
    for place, text in inputs.items():
        message["content"][place]["input"] = json.loads(text)
    return message


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 200), max_size=12), st.booleans())
def test_messages_do_not_depend_on_the_cuts(text: str, places: list[int], constrained: bool) -> None:
    whole = plainly(make(MessageAnswer, constrained=constrained), cut(text, [], FinishReason.STOP))
    events = cut(text, places, FinishReason.STOP)
    plain = plainly(make(MessageAnswer, constrained=constrained), events)
    assert plain["content"] == whole["content"]
    if constrained and "wrong" in text:
        return  # a grammar makes no such thing
    message = message_of(streamed(make(MessageAnswer, constrained=constrained), events))
    assert message["content"] == plain["content"]
    assert (message["stop_reason"], message["stop_sequence"]) == (plain["stop_reason"], plain["stop_sequence"])


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 200), max_size=12), st.booleans())
def test_responses_do_not_depend_on_the_cuts(text: str, places: list[int], stopped: bool) -> None:
    finish = FinishReason.STOP if stopped else FinishReason.LENGTH
    whole = plainly(make(ResponseAnswer, constrained=False), cut(text, [], finish))
    events = cut(text, places, finish)
    assert plainly(make(ResponseAnswer, constrained=False), events)["output"] == whole["output"]
    found = streamed(make(ResponseAnswer, constrained=False), events)
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    ended = found[-1]["response"]
    assert (ended["status"], ended["output"]) == (whole["status"], whole["output"])
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    for item in done:
        deltas = [e["delta"] for e in found if e["type"].endswith(".delta") and e["item_id"] == item["id"]]
        assert "".join(deltas) == item.get("arguments", "") + "".join(part["text"] for part in item.get("content", []))


@given(st.sampled_from(TEXTS[2:4]), st.integers(1, 200))
def test_a_message_cut_anywhere_reads_as_the_clients_stream_does(text: str, length: int) -> None:
    jiter = pytest.importorskip("jiter")  # comes with the client
    events = cut(text[:length], [], FinishReason.LENGTH)
    plain = plainly(make(MessageAnswer, constrained=True), events)
    found = streamed(make(MessageAnswer, constrained=True), events)
    assert plain["stop_reason"] == "max_tokens"
    for place, block in enumerate(plain["content"]):
        if block["type"] == "tool_use":
            pieces = [e["delta"]["partial_json"] for e in found if "delta" in e and e.get("index") == place]
            text = "".join(pieces)
            assert block["input"] == (jiter.from_json(text.encode(), partial_mode=True) if text else {})
