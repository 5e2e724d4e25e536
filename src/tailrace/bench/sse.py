"""Server-sent events of a generating route, read as they arrive: the moment of each piece, and what came with it.

Runs once per chunk of every stream: it splits, parses and stores, nothing else.
"""

from __future__ import annotations

from array import array
from typing import Any

import orjson


class Reading:
    """Feed it chunks with their time of arrival; its fields are what the stream has said so far."""

    __slots__ = ("_rest", "chunks", "done", "error", "finish", "finished", "last", "texts", "timings", "usage")

    def __init__(self) -> None:
        self._rest = b""
        self.chunks: array[float] = array("d")  # when each piece of text came
        self.texts: list[str] = []
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.finish = ""
        self.finished: float | None = None  # when the finish reason came
        self.last: float | None = None  # when the last event came
        self.done = False

    def feed(self, now: float, data: bytes) -> None:
        """Raises ValueError on an event that is no JSON object."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(now, line[5:].strip())

    def _event(self, now: float, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        event = orjson.loads(payload)
        if not isinstance(event, dict):
            raise ValueError("an event is no JSON object")
        self.last = now
        for choice in event.get("choices") or ():
            self._choice(now, choice)
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        if "error" in event:
            self.error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}

    def _choice(self, now: float, choice: dict[str, Any]) -> None:
        text = choice.get("text")
        if text is None:
            text = _delta_text(choice.get("delta") or {})
        if text:
            self.chunks.append(now)
            self.texts.append(text)
        if choice.get("finish_reason"):
            self.finish, self.finished = choice["finish_reason"], now


def _delta_text(delta: dict[str, Any]) -> str:
    """Content, else what some models think or call before it: the first of any is the first token."""
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if not text and delta.get("tool_calls"):
        text = "".join((call.get("function") or {}).get("arguments") or " " for call in delta["tool_calls"])
    return str(text or "")
