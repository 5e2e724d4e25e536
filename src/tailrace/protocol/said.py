"""What one choice of a chat says: its text read into thoughts, prose and calls, the same for plain answers and streams.

A call of a stream is a first delta with its id and name, then its arguments in pieces; of a plain answer it is all in
one. Ids follow from the answer's own, so that they are the same wherever they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tailrace.text.parsers.delta import Delta, Kind, Parser, merged
from tailrace.text.parsers.reasoning import Reasoning
from tailrace.types import FinishReason, TokenEvent

Json = dict[str, Any]

TOOL_CALLS = "tool_calls"  # the reason of an answer that ended with calls


@dataclass(slots=True)
class _Call:
    name: str
    arguments: list[str] = field(default_factory=list)


class Said:
    def __init__(self, parser: Parser, ids: str, id_length: int, prefix: str = "call_") -> None:
        """`ids` is what call ids are made from, `id_length` how long they are (0: `prefix` and 24 digits)."""
        self._parser = parser
        self._ids = ids
        self._id_length = id_length
        self._prefix = prefix
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.reasons = isinstance(parser, Reasoning)
        self.reasoning_tokens = 0
        self._calls: list[_Call] = []

    def read(self, event: TokenEvent) -> list[Delta]:
        """What an event adds. With the last one, also what was held back."""
        thinking = self._thinks()
        deltas = self._parser.push(event.text) if event.text else []
        if thinking or self._thinks():
            self.reasoning_tokens += len(event.token_ids)
        if event.finish is not None:
            deltas = merged([*deltas, *self._parser.finish()])
        for delta in deltas:
            self._keep(delta)
        return deltas

    @property
    def unfinished(self) -> bool:
        """The last call has no end."""
        return self._parser.unfinished

    def reason(self, finish: FinishReason) -> str:
        """Why it ended: with calls, if all of them are whole."""
        called = finish is FinishReason.STOP and self._calls and not self.unfinished
        return TOOL_CALLS if called else finish.value

    def message(self) -> Json:
        """The whole of it, once it has ended."""
        content = "".join(self._texts)
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if self.reasons:
            message["reasoning_content"] = "".join(self._thoughts) or None
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": self.call_id(number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for number, call in enumerate(self._calls)
            ]
        return message

    def bodies(self, deltas: Sequence[Delta], *, last: bool) -> list[Json]:
        """What read() gave, as OpenAI's deltas. `last`: nothing comes after; an answer of nothing has empty content."""
        bodies = [self._body(delta) for delta in deltas]
        return [*bodies, {"content": ""}] if last and not (self._texts or self._calls) else bodies

    def _thinks(self) -> bool:
        return isinstance(self._parser, Reasoning) and self._parser.thinking

    def _keep(self, delta: Delta) -> None:
        if delta.kind is Kind.TEXT:
            self._texts.append(delta.text)
            return
        if delta.kind is Kind.REASONING:
            self._thoughts.append(delta.text)
            return
        if delta.name:
            self._calls.append(_Call(delta.name))
        self._calls[delta.call].arguments.append(delta.text)

    def _body(self, delta: Delta) -> Json:
        if delta.kind is Kind.TEXT:
            return {"content": delta.text}
        if delta.kind is Kind.REASONING:
            return {"reasoning_content": delta.text}
        call: Json = {"index": delta.call, "function": {"arguments": delta.text}}
        if delta.name:
            function = {"name": delta.name, "arguments": delta.text}
            call = {"index": delta.call, "id": self.call_id(delta.call), "type": "function", "function": function}
        return {TOOL_CALLS: [call]}

    def call_id(self, number: int) -> str:
        digest = blake2b(f"{self._ids}/{number}".encode(), digest_size=12).hexdigest()
        return digest[: self._id_length] if self._id_length else f"{self._prefix}{digest}"
