"""Input items: what a body may hold, the one form in which they are kept, and the chat messages that they mean.

message                 a message of its role
reasoning               thoughts of the assistant's turn
function_call           a call of the assistant's turn
function_call_output    a message of role tool, for a call before it
item_reference          the item of a kept response that has this id
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from pydantic import ConfigDict

from tailrace.errors import InvalidRequest, NotFound, Unsupported
from tailrace.protocol.body import Items, Part, missing, needed
from tailrace.protocol.names import Names

Json = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = frozenset(("input_text", "output_text", "reasoning_text", "summary_text"))
_REFERENCE = "item_reference"
_MADE = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})[0-9a-f]{2,}")  # ids of items of our answers
_SHOWN = 40  # characters of a client's own word in a message
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


class Content(Part):
    """A part of a message, a result or thoughts; a refusal is text as well."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Part):
    """One item; which fields it has follows from its type. Without a type it is a message."""

    model_config = ConfigDict(extra="ignore")

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | Items[Content] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Items[Content] | None = None
    summary: Items[Content] | None = None
    encrypted_content: str | None = None

    @property
    def refers(self) -> bool:
        """To an item that is kept: what has only an id does."""
        return self.type == _REFERENCE or (self.type is None and self.role is None)


def kept_items(given: str | Sequence[Item], response_id: str, referred: Mapping[str, Json]) -> list[Json]:
    """The items as they are stored and shown again. Those without an id get one that follows from the response's.
    `referred`: what references may name, by id.

    Raises InvalidRequest, NotFound or Unsupported naming the item.
    """
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
        return [_message(given[0], "input", _id("message", response_id, 0))]
    return [
        _referred(item, f"input[{i}]", referred) if item.refers else _kept(item, f"input[{i}]", response_id, i)
        for i, item in enumerate(given)
    ]


def response_of(item_id: str) -> str:
    """The response that has made the item with this id, as its answer names them; empty where none of ours did."""
    made = _MADE.fullmatch(item_id)
    return "" if made is None else f"resp_{made[1]}"


def _referred(item: Item, where: str, referred: Mapping[str, Json]) -> Json:
    name = needed(item.id, f"{where}.id")
    if name not in referred:
        raise NotFound(f"{where}: no kept response has made an item with the id {name[:_SHOWN]!a}", param=f"{where}.id")
    return referred[name]


def _kept(item: Item, where: str, response_id: str, number: int) -> Json:
    kind = item.type or "message"
    if kind not in _PREFIXES:
        raise Unsupported(
            f"{where}: items of type {kind[:_SHOWN]!a} are not supported here; "
            f"expected {', '.join((*_PREFIXES, _REFERENCE))}",
            param=f"{where}.type",
        )
    own = item.id or _id(kind, response_id, number)
    if kind == "message":
        return _message(item, where, own)
    head = {"id": own, "type": kind, "status": "completed"}
    if kind == "reasoning":
        summary, content = item.summary or [], item.content
        return {
            "id": own,
            "type": kind,
            "summary": [{"type": "summary_text", "text": t} for t in _texts(summary, f"{where}.summary")],
            "content": [{"type": "reasoning_text", "text": t} for t in _texts(content or [], f"{where}.content")],
        }
    call = {"call_id": needed(item.call_id, f"{where}.call_id")}
    if kind == "function_call":
        names = {name: needed(getattr(item, name), f"{where}.{name}") for name in ("name", "arguments")}
        return {**head, **call, **names}
    if item.output is None:
        raise missing(f"{where}.output")
    return {**head, **call, "output": _output(item.output, f"{where}.output")}


def _output(output: str | Sequence[Content], where: str) -> str | list[Json]:
    if isinstance(output, str):
        return output
    return [{"type": "input_text", "text": text} for text in _texts(output, where)]


def _message(item: Item, where: str, own: str) -> Json:
    role = needed(item.role, f"{where}.role")
    if role not in _ROLES:
        raise InvalidRequest(f"{where}.role is {role[:_SHOWN]!a}; expected {', '.join(_ROLES)}", param=f"{where}.role")
    if item.content is None:
        raise missing(f"{where}.content")
    texts = _texts(item.content, f"{where}.content")
    form = {"type": "output_text", "annotations": [], "logprobs": []} if role == "assistant" else {"type": "input_text"}
    content = [{**form, "text": text} for text in texts]
    return {"id": own, "type": "message", "role": role, "status": "completed", "content": content}


def _texts(content: str | Sequence[Content], where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _text(part: Content, where: str) -> str:
    if part.type == "refusal":
        return needed(part.refusal, f"{where}.refusal")
    if part.type not in _TEXTS:
        raise Unsupported(
            f"{where}: parts of type {part.type[:_SHOWN]!a} are not supported here; this server reads text",
            param=f"{where}.type",
        )
    return needed(part.text, f"{where}.text")


def _id(kind: str, response_id: str, number: int) -> str:
    return f"{_PREFIXES[kind]}_{blake2b(f'{response_id}/input/{number}'.encode(), digest_size=24).hexdigest()}"


class Talk:
    """The chat messages of kept items, and where they came from."""

    def __init__(self, instructions: str | None, items: Sequence[tuple[Json, str]]) -> None:
        """`items` with their places in the body. Raises InvalidRequest naming one that answers no call, or a call
        without an answer."""
        self.messages: list[Json] = []
        self.names = Names({})
        self._calls: dict[str, str] = {}  # without a result so far, and their functions
        if instructions:
            self._say("system", [instructions], "instructions")
        for item, where in items:
            self._take(item, where)
        for message in self.messages:
            if message["content"] is None and "tool_calls" not in message:
                message["content"] = ""  # thoughts that were cut
        if self._calls:
            raise InvalidRequest(
                f"input has no function_call_output for the call {next(iter(self._calls))[:_SHOWN]!a}", param="input"
            )

    def _take(self, item: Json, where: str) -> None:
        kind = item["type"]
        if kind == "message":
            self._say(item["role"], [part.get("text", "") for part in item["content"]], where)
        elif kind == "reasoning":
            self._think(item, where)
        elif kind == "function_call":
            self._call(item, where)
        else:
            self._result(item, where)

    def _say(self, role: str, texts: Sequence[str], where: str) -> None:
        """What stands in front of all turns is one system message, as templates expect; text beside calls is of their
        turn."""
        parts = [{"type": "text", "text": text} for text in texts]
        role = "system" if role == "developer" else role
        last: Json = self.messages[-1] if self.messages else {"role": ""}
        in_front = role == "system" and len(self.messages) == 1
        if last["role"] == role and (in_front or (role == "assistant" and _open(last))):
            last["content"] = (last["content"] or []) + parts
        else:
            self._begin({"role": role, "content": parts}, where)

    def _think(self, item: Json, where: str) -> None:
        thoughts = "".join(part["text"] for part in item.get("content") or item["summary"])
        if thoughts:
            self._assistant(where, fresh=True)["reasoning_content"] = thoughts

    def _call(self, item: Json, where: str) -> None:
        message, call = self._assistant(where), item["call_id"]
        if call in self._calls:
            raise InvalidRequest(f"{where}.call_id is {call[:_SHOWN]!a}, as another call's", param=f"{where}.call_id")
        self._calls[call] = item["name"]
        calls = message.setdefault("tool_calls", [])
        self.names[f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}].function"] = where
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls.append({"id": call, "type": "function", "function": function})

    def _result(self, item: Json, where: str) -> None:
        call, output = item["call_id"], item["output"]
        if call not in self._calls:
            raise InvalidRequest(
                f"{where}.call_id is {call[:_SHOWN]!a}, which no function_call before it has, or which has its output",
                param=f"{where}.call_id",
            )
        if not isinstance(output, str):
            output = [{"type": "text", "text": part["text"]} for part in output]
        message = {"role": "tool", "tool_call_id": call, "name": self._calls.pop(call), "content": output}
        self._begin(message, where)

    def _assistant(self, where: str, *, fresh: bool = False) -> Json:
        """The assistant's turn at the end; a new one where there is none, or its thoughts are to come first."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or fresh:
            self._begin({"role": "assistant", "content": None}, where)
        return self.messages[-1]

    def _begin(self, message: Json, where: str) -> None:
        self.names[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)


def _open(message: Json) -> bool:
    """Text may still join this turn of the assistant's."""
    return message["content"] is None or "tool_calls" in message


def turns(items: Sequence[Json]) -> Iterator[int]:
    """Where a conversation may be cut: in front of what a user says, but the first of all."""
    for place, item in enumerate(items):
        if place and item["type"] == "message" and item["role"] == "user":
            yield place
