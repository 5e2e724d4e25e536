"""Turns and content blocks, and the chat messages that they mean.

    user        text -> a message; tool_result -> a message of role tool, in the order they stand in
    assistant   text and tool_use -> one message; thinking -> its thoughts, as text

Neighbours of one role are one turn. Each result answers a call of the turn before it, and each call is answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.protocol.body import Items, Part, missing, needed
from tailrace.protocol.names import Names

Json = dict[str, Any]

_MOST_NAMED = 40  # characters of a client's own word in a message


class ResultBlock(Part):
    """A block of a tool's result, or of the system text."""

    type: str
    text: str | None = None


class Block(Part):
    """One content block; which fields it has follows from its type. `cache_control` and `citations` of others' making
    are dropped."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Items[ResultBlock] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Turn(Part):
    role: Literal["user", "assistant"]
    content: str | Items[Block]


class Talk:
    """The chat messages of a body, and where they came from."""

    def __init__(self, system: str | Sequence[ResultBlock] | None, turns: Sequence[Turn]) -> None:
        """Raises InvalidRequest or Unsupported naming the block."""
        self.messages: list[Json] = []
        self.names = Names({})
        self._open: dict[str, tuple[str, str]] = {}  # calls without a result: their tools and where they stand
        self._role = ""  # of the turn before
        if system:
            self._add("system", list(_system(system)))
            self.names["messages[0]"] = "system"
        if not turns:
            raise InvalidRequest("messages must hold at least one message", param="messages")
        for number, turn in enumerate(turns):
            self._turn(turn, f"messages[{number}]", last=number == len(turns) - 1)
        self._all_answered()

    @property
    def continues(self) -> bool:
        """The answer goes on with the last message, which is the assistant's."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _turn(self, turn: Turn, where: str, *, last: bool) -> None:
        if not turn.content:
            if last and turn.role == "assistant":
                return
            raise InvalidRequest(f"{where}.content must not be empty", param=f"{where}.content")
        if isinstance(turn.content, str):
            placed = [(Block(type="text", text=turn.content), f"{where}.content")]
        else:
            placed = [(block, f"{where}.content[{i}]") for i, block in enumerate(turn.content)]
        if (self._role, turn.role) == ("user", "assistant"):
            self._all_answered()
        self._role = turn.role
        if turn.role == "assistant":
            self._assistant(placed, where)
            return
        for block, place in placed:
            self._of_user(block, place)

    def _of_user(self, block: Block, where: str) -> None:
        if block.type != "tool_result":
            self._add("user", [(_text(block, where), where)])
            return
        call = needed(block.tool_use_id, f"{where}.tool_use_id")
        if call not in self._open:
            raise InvalidRequest(
                f"{where}.tool_use_id is {call[:_MOST_NAMED]!a}, which no tool_use of the turn before it has",
                param=f"{where}.tool_use_id",
            )
        name, _ = self._open.pop(call)
        self.names[f"messages[{len(self.messages)}]"] = where
        self.messages.append({"role": "tool", "tool_call_id": call, "name": name, "content": _result(block, where)})

    def _assistant(self, blocks: Sequence[tuple[Block, str]], where: str) -> None:
        for block, place in blocks:
            if block.type == "tool_use":
                self._call(block, place)
            elif block.type == "thinking":
                message = self._of_assistant(where)
                thoughts = needed(block.thinking, f"{place}.thinking")
                message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
            elif block.type != "redacted_thinking":  # of another server, which alone can read it
                self._of_assistant(where)
                self._add("assistant", [(_text(block, place), place)])

    def _call(self, block: Block, where: str) -> None:
        call, name = needed(block.id, f"{where}.id"), needed(block.name, f"{where}.name")
        if call in self._open:
            raise InvalidRequest(f"{where}.id is {call[:_MOST_NAMED]!a}, as another call's", param=f"{where}.id")
        if block.input is None:
            raise missing(f"{where}.input")
        self._open[call] = name, where
        message = self._of_assistant(where)
        calls = message.setdefault("tool_calls", [])
        self.names[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}].function"] = where
        function = {"name": name, "arguments": json.dumps(block.input, ensure_ascii=False)}
        calls.append({"id": call, "type": "function", "function": function})

    def _of_assistant(self, where: str) -> Json:
        """The assistant's turn at the end, begun if there is none."""
        if not self.continues:
            self.names[f"messages[{len(self.messages)}]"] = where
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]

    def _add(self, role: str, texts: Sequence[tuple[str, str]]) -> None:
        """More text of a role, in its turn at the end or a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.names[f"messages[{len(self.messages)}]"] = texts[0][1]
            self.messages.append({"role": role, "content": None})
        message, at = self.messages[-1], f"messages[{len(self.messages) - 1}]"
        parts = message["content"] or []
        for text, where in texts:
            self.names[f"{at}.content[{len(parts)}]"] = where
            parts.append({"type": "text", "text": text})
        message["content"] = parts

    def _all_answered(self) -> None:
        for _, where in self._open.values():
            raise InvalidRequest(f"{where}: this tool_use has no tool_result in the next turn", param=where)


def _system(system: str | Sequence[ResultBlock]) -> Iterator[tuple[str, str]]:
    if isinstance(system, str):
        yield system, "system"
        return
    for i, block in enumerate(system):
        yield _text(block, f"system[{i}]"), f"system[{i}]"


def _result(block: Block, where: str) -> str | list[Json]:
    """What the model is shown of a result. An error is marked as one in front."""
    content = block.content
    if isinstance(content, list):
        texts = [_text(each, f"{where}.content[{i}]") for i, each in enumerate(content)]
    else:
        texts = [content or ""]
    if block.is_error:
        texts[:1] = ["Error: " + "".join(texts[:1])]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _text(block: Block | ResultBlock, where: str) -> str:
    if block.type != "text":
        raise Unsupported(
            f"{where}: blocks of type {block.type[:_MOST_NAMED]!a} are not supported here; this server reads text",
            param=f"{where}.type",
        )
    if block.text == "":
        raise InvalidRequest(f"{where}.text must not be empty", param=f"{where}.text")
    return needed(block.text, f"{where}.text")
