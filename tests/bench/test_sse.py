"""Streams read as they arrive, however the bytes are cut."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bench.sse import Reading


def event(**fields: object) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


CHAT = (
    event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    + b": waiting\n\n"
    + event(choices=[{"index": 0, "delta": {"content": "Grüße"}}], usage=None)
    + event(choices=[{"index": 0, "delta": {"content": " an alle"}}], usage=None)
    + event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}], timings={"queue_ms": 4.5})
    + event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 5})
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(1, len(CHAT) - 1), max_size=12))
def test_any_cut_reads_the_same(cuts: list[int]) -> None:
    reading, at = Reading(), 0
    for now, cut in enumerate([*sorted(set(cuts)), len(CHAT)]):
        reading.feed(float(now), CHAT[at:cut])
        at = cut
    assert reading.texts == ["Grüße", " an alle"]
    assert len(reading.chunks) == 2
    assert (reading.finish, reading.done) == ("length", True)
    assert reading.usage == {"prompt_tokens": 9, "completion_tokens": 5}
    assert reading.timings == {"queue_ms": 4.5}


def test_moments_are_those_of_text_not_of_the_role() -> None:
    reading = Reading()
    for now, line in enumerate(CHAT.split(b"\n\n")):
        reading.feed(now, line + b"\n\n")
    assert list(reading.chunks) == [2.0, 3.0]
    assert (reading.finished, reading.last) == (4.0, 5.0)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": "a"}, ["a"]),
        ({"delta": {"reasoning_content": "hm"}}, ["hm"]),
        ({"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}, ["{}"]),
        ({"delta": {"content": None}}, []),
        ({"text": ""}, []),
    ],
)
def test_what_counts_as_text(choice: dict[str, object], text: list[str]) -> None:
    reading = Reading()
    reading.feed(0.0, event(choices=[{"index": 0, **choice}]))
    assert reading.texts == text


@pytest.mark.parametrize("line", [b"data: {oops\n", b"data: 5\n"])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Reading().feed(0.0, line)


def test_lines_may_end_in_carriage_returns() -> None:
    reading = Reading()
    reading.feed(0.0, event(choices=[{"text": "x"}]).replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n")
    assert (reading.texts, reading.done) == (["x"], True)
