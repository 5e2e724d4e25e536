"""Events to answers: plain and streamed say the same, whatever the cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import timings
from tailrace.protocol.answer import Answer, ChatAnswer, CompletionAnswer
from tailrace.protocol.ask import Ask
from tailrace.types import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StopConditions,
    TokenEvent,
    TokenLogprob,
    Usage,
)  # fmt: skip
from tests.serving import parse_stream

USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2)
TIMES = timings(Timeline(ManualClock()))


def make(
    kind: type[Answer] = ChatAnswer, *, prompts: int = 1, n: int = 1, usage: bool = False, logprobs: bool = False,
    echo: tuple[str, ...] = (),
) -> Answer:  # fmt: skip
    request = GenerateRequest("id", "m", np.array([1, 2, 3], np.int32), SamplingParams(), StopConditions(9), n=n)
    return kind(Ask((request,) * prompts, True, usage, n, logprobs, echo), "id-1", 1234)


def both(events: list[TokenEvent], **options: Any) -> tuple[dict[str, Any], Any]:
    """(plain body, parsed stream) of the same events."""
    plain, stream = make(**options), make(**options)
    out = b""
    for event in events:
        plain.collect(event.index, event)
        out += stream.chunk(event.index, event)
    out += stream.end(USAGE, TIMES)
    return orjson.loads(plain.body(USAGE, TIMES)), parse_stream(out.decode())


def stop(index: int = 0, text: str = "") -> TokenEvent:
    return TokenEvent(index, text, (9,), finish=FinishReason.STOP)


def logprob(token: int, data: bytes, value: float | None, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(token, data, value, top)


def test_a_chat_answer() -> None:
    plain, stream = both([TokenEvent(0, "Hel", (1,)), TokenEvent(0, "", (2,)), stop(text="lo")])
    assert plain["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert plain["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}
    }  # fmt: skip
    assert (plain["object"], plain["id"], plain["created"], plain["model"]) == ("chat.completion", "id-1", 1234, "m")
    assert plain["timings"]["total_ms"] == 0.0
    deltas = [c["delta"] for c in stream.choices(0)]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
    assert {e["object"] for e in stream.events} == {"chat.completion.chunk"}
    assert stream.done


def test_usage_only_when_asked() -> None:
    _, without = both([stop()])
    assert all("usage" not in event for event in without.events)
    assert "timings" in without.events[-1]
    _, asked = both([stop()], usage=True)
    assert [event["usage"] for event in asked.events[:-1]] == [None] * (len(asked.events) - 1)
    assert asked.events[-1]["choices"] == []
    assert asked.events[-1]["usage"]["total_tokens"] == 7
    assert ["timings" in event for event in asked.events] == [False] * (len(asked.events) - 2) + [True, True]


def test_stop_reason_and_length() -> None:
    event = TokenEvent(0, "x", (1,), finish=FinishReason.STOP, stop_reason="END")
    plain, stream = both([event])
    assert plain["choices"][0]["stop_reason"] == "END"
    assert stream.choices(0)[-1]["stop_reason"] == "END"
    plain, _ = both([TokenEvent(0, "x", (1,), finish=FinishReason.LENGTH)])
    assert plain["choices"][0]["finish_reason"] == "length"


def test_chat_logprobs() -> None:
    events = [
        TokenEvent(0, "", (7,), (logprob(7, b"\xc5", -0.25, (7, b"\xc5", -0.25), (8, b"a", -2.0)),)),
        TokenEvent(0, "Ž", (8,), (logprob(8, b"\xbd", float("-inf")),), finish=FinishReason.LENGTH),
    ]
    plain, stream = both(events, logprobs=True)
    content = plain["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "\ufffd", "logprob": -0.25, "bytes": [0xC5],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC5]}, {"token": "a", "logprob": -2.0, "bytes": [97]}
        ],
    }  # fmt: skip
    assert content[1]["logprob"] == -9999.0
    assert bytes(content[0]["bytes"] + content[1]["bytes"]).decode() == "Ž"
    streamed = [entry for c in stream.choices(0) if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert streamed == content


def test_completion_logprobs_and_offsets() -> None:
    events = [
        TokenEvent(0, "", (1,), (logprob(1, b"\xc5", -1.0, (1, b"\xc5", -1.0), (5, b"\xc6", -3.0)),)),
        TokenEvent(0, "Ž", (2,), (logprob(2, b"\xbd", -2.0, (3, b"z", -0.5)),)),
        TokenEvent(0, "ab", (3,), (logprob(3, b"ab", -3.0),), finish=FinishReason.LENGTH),
    ]
    plain, stream = both(events, kind=CompletionAnswer, logprobs=True)
    columns = plain["choices"][0]["logprobs"]
    assert columns == {
        "tokens": ["bytes:\\xc5", "bytes:\\xbd", "ab"],
        "token_logprobs": [-1.0, -2.0, -3.0],
        "top_logprobs": [{"bytes:\\xc5": -1.0, "bytes:\\xc6": -3.0}, {"z": -0.5, "bytes:\\xbd": -2.0}, {"ab": -3.0}],
        "text_offset": [0, 0, 1],
    }
    chunks = [c["logprobs"] for c in stream.choices(0) if c["logprobs"]]
    assert {key: [x for chunk in chunks for x in chunk[key]] for key in columns} == columns


def test_echo_comes_first_with_the_prompts_logprobs_on_every_choice() -> None:
    prompt = (logprob(1, b"a", None), logprob(2, b"b", -1.0))
    events = [
        TokenEvent(0, "x", (3,), (logprob(3, b"x", -2.0),), prompt_logprobs=prompt),
        TokenEvent(1, "y", (4,), (logprob(4, b"y", -3.0),)),
        TokenEvent(0, finish=FinishReason.LENGTH),
        TokenEvent(1, finish=FinishReason.LENGTH),
    ]
    plain, stream = both(events, kind=CompletionAnswer, n=2, logprobs=True, echo=("ab",))
    assert [c["text"] for c in plain["choices"]] == ["abx", "aby"]
    assert [stream.text(i) for i in (0, 1)] == ["abx", "aby"]
    for choice, token in zip(plain["choices"], ("x", "y"), strict=True):
        assert choice["logprobs"]["tokens"] == ["a", "b", token]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_the_prompt_alone() -> None:
    event = TokenEvent(0, finish=FinishReason.LENGTH, prompt_logprobs=(logprob(1, b"a", None),))
    plain, stream = both([event], kind=CompletionAnswer, logprobs=True, echo=("a",))
    assert (plain["choices"][0]["text"], plain["choices"][0]["logprobs"]["tokens"]) == ("a", ["a"])
    assert (stream.text(), stream.finish()) == ("a", ["length"])


def test_only_the_last_choice_waits_for_the_timings() -> None:
    answer = make(n=2)
    first = answer.chunk(0, stop(0))
    assert b'"finish_reason":"stop"' in first
    assert b'"finish_reason":"stop"' not in answer.chunk(1, stop(1))
    assert b'"finish_reason":"stop"' in answer.end(USAGE, TIMES)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.text(max_size=4)), max_size=30),
    st.sampled_from([ChatAnswer, CompletionAnswer]),
    st.booleans(),
)
def test_streams_join_to_the_plain_answer(pieces: list[tuple[int, str]], kind: type[Answer], usage: bool) -> None:
    events = [TokenEvent(index, text, (1,)) for index, text in pieces] + [stop(i) for i in range(4)]
    echo = ("p", "q") if kind is CompletionAnswer else ()
    plain, stream = both(events, kind=kind, prompts=2, n=2, usage=usage, echo=echo)
    for choice in plain["choices"]:
        text = choice["text"] if kind is CompletionAnswer else choice["message"]["content"]
        assert stream.text(choice["index"]) == text
        assert stream.finish(choice["index"]) == ["stop"]
    if kind is CompletionAnswer:
        assert [c["text"][0] for c in plain["choices"]] == ["p", "p", "q", "q"]


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_text_that_json_must_escape(kind: type[Answer]) -> None:
    text = '"\\\n\t\u2028\x00</script>é👩🏽‍🚀'
    plain, stream = both([TokenEvent(0, text, (1,)), stop()], kind=kind)
    assert stream.text() == text
    assert (plain["choices"][0].get("text") or plain["choices"][0]["message"]["content"]) == text


def test_answers_that_come_sorted_are_as_many_as_there_are() -> None:
    """Of two prompts with four choices each, of which three are wanted: the second has found two."""
    request = GenerateRequest("id", "m", np.array([1], np.int32), SamplingParams(), StopConditions(9), n=4)
    answer = CompletionAnswer(Ask((request,) * 2, False, False, 4, False, keep=3, sorted=True), "id-1", 1234)
    for index in range(8):
        found = index < 6
        tokens = (9,) if found else ()
        answer.collect(index, TokenEvent(index, f"t{index}" if found else "", tokens, finish=FinishReason.STOP))
    choices = orjson.loads(answer.body(USAGE, TIMES))["choices"]
    assert [choice["text"] for choice in choices] == ["t0", "t1", "t2", "t4", "t5"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3, 4]
